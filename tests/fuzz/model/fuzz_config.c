/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as config.json. Few changes of bytes leave it JSON, so each input is also the seed of changes to documents
 * that are: to itself if it is one, else to a file of the corpus. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#include "config_check.h"
#include "config_seeds.h"
#include "json_mutate.h"

#define MUTANTS 4u /* of an input */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct config_seeds *seeds(void)
{
    static struct config_seeds s;

    if (!s.count)
        config_seeds_read(CONFIG_CORPUS, &s);
    return &s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t state = json_mutate_seed(data, size);
    const struct config_seeds *s = seeds();
    json_t *self;

    config_check((const char *)data, size, NULL);
    self = json_loadb((const char *)data, size, 0, NULL);
    for (uint32_t i = 0; i < MUTANTS; i++) {
        const json_t *other = s->docs[json_mutate_random(&state) % s->count];
        const json_t *doc = self ? self : s->docs[json_mutate_random(&state) % s->count];
        size_t bytes;
        char *text = json_mutate(doc, other, &state, &bytes);

        assert(text);
        config_check(text, bytes, NULL);
        free(text);
    }
    json_decref(self);
    return 0;
}
