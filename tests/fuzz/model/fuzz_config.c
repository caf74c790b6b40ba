/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as config.json: what is accepted must be within the limits that the rest of the code computes with. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size ? size : 1);
    struct dk_model_config c;
    struct dk_err err = {0};

    if (!copy)
        return 0;
    memcpy(copy, data, size);
    if (dk_model_config_parse(copy, size, "input", &c, &err) == 0) {
        assert(err.rc == 0);
        assert(c.hidden && c.layers && c.layers <= 512 && c.vocab && c.context_max);
        assert(c.heads && c.kv_heads && c.heads % c.kv_heads == 0 && c.head_dim && c.head_dim % 2 == 0);
        assert(c.rms_eps > 0 && c.rope_theta >= 1);
        for (uint32_t i = 0; i < c.layers; i++)
            assert(c.layer_is_moe[i] ? c.experts && c.top_k && c.top_k <= c.experts && c.moe_intermediate
                                     : c.intermediate != 0);
        assert(dk_model_parameters(&c) > 0);
    } else {
        assert(err.rc < 0 && err.text[0]);
    }
    free(copy);
    return 0;
}
