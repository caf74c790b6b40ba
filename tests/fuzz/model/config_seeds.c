/* SPDX-License-Identifier: Apache-2.0 */
#include "config_seeds.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

void config_seeds_read(const char *folder, struct config_seeds *out)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    char path[4096];

    out->count = 0;
    for (int i = 0; i < count; i++) {
        json_t *doc;

        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        free(entries[i]);
        doc = out->count < CONFIG_SEEDS_MAX ? json_load_file(path, 0, NULL) : NULL;
        if (doc)
            out->docs[out->count++] = doc;
    }
    if (count >= 0)
        free(entries);
    if (!out->count) {
        fprintf(stderr, "%s: no JSON file\n", folder);
        abort();
    }
}
