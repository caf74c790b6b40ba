/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a tokenizer.json. What loads must also encode and decode. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "abc <x> Ab1 23  \xC3\xA9"
                               "e\xCC\x81\xE1\xA0\x8E\xFF\n\n x";
    char *copy = malloc(size ? size : 1);
    struct dk_tokenizer *t = NULL;
    struct dk_err err = {0};
    uint32_t *ids = NULL;
    size_t count = 0;
    int rc;

    if (size)
        memcpy(copy, data, size);
    rc = dk_tokenizer_from_memory(copy, size, "fuzz", &t, &err);
    free(copy);
    if ((rc == 0) != (t != NULL) || (rc < 0 && !err.text[0]))
        abort(); /* an error says what is wrong */
    if (rc < 0)
        return 0;
    rc = dk_tokenizer_encode_prompt(t, text, sizeof text - 1, &ids, &count, &err);
    if (rc == 0) {
        char *out = malloc(dk_detokenizer_room(t));
        struct dk_detokenizer d = {{0}, 0};

        for (size_t i = 0; i < count; i++) {
            if (ids[i] >= dk_tokenizer_size(t))
                abort();
            dk_detokenizer_next(t, &d, ids[i], i % 2, out, dk_detokenizer_room(t));
        }
        dk_detokenizer_finish(&d, out, dk_detokenizer_room(t));
        free(out);
    }
    free(ids);
    dk_tokenizer_close(t);
    return 0;
}
