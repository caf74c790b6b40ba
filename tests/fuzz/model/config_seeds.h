/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_CONFIG_SEEDS_H
#define DK_CONFIG_SEEDS_H

#include <stddef.h>

#include <jansson.h>

#define CONFIG_SEEDS_MAX 64u

struct config_seeds {
    json_t *docs[CONFIG_SEEDS_MAX];
    size_t count;
};

/* Every file of the folder that jansson reads (no number of more than 64 bits), in the order of their names; aborts if
 * there is none. One reference to each is in *out. */
void config_seeds_read(const char *folder, struct config_seeds *out);

#endif
