/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a weight file: every tensor that is accepted must lie inside the input. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    const struct dk_tensor *w, *s;
    struct dk_err err = {0};
    struct dk_checkpoint *c;
    volatile uint8_t seen = 0;

    if (!copy)
        return 0;
    memcpy(copy, data, size);
    if (dk_checkpoint_from_memory(copy, size, "input", &c, &err) == 0) {
        assert(err.rc == 0 && dk_checkpoint_id(c) != 0);
        for (uint32_t i = 0; i < dk_checkpoint_tensor_count(c); i++) {
            const struct dk_tensor *t = dk_checkpoint_tensor(c, i);

            assert(dk_checkpoint_find(c, t->name) == t);
            assert(t->data >= copy && t->bytes <= size && (size_t)(t->data - copy) <= size - t->bytes);
            if (t->bytes > 0)
                seen ^= (uint8_t)(t->data[0] ^ t->data[t->bytes - 1]);
            if (dk_checkpoint_get_weight(c, t->name, t->shape[0], t->rank == 2 ? t->shape[1] : 0, &w, &s, &err) == 0)
                assert(w == t && (t->type != DK_F8_E4M3 || s));
            else
                assert(err.rc < 0 && err.text[0]);
        }
        dk_checkpoint_close(c);
    } else {
        assert(err.rc < 0 && err.text[0]);
    }
    free(copy);
    return 0;
}
