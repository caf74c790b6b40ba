/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads over whole models in mixed batches, as a plain program: the thread sanitizer and the test framework
 * of the other tests do not run together. Usage: test_family_threads MODEL_FOLDER... */
#include "local_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 60, STEPS = 6, SEQUENCES = 3 };

/* Logits of the last step of three sequences that start with prompts of different lengths. */
static int run(const char *dir, uint32_t threads, float **logits, size_t *bytes)
{
    struct local_options o = local_defaults();
    struct local_rows rows[SEQUENCES];
    struct local_model m;
    struct dk_err err = {0};
    uint32_t ids[PROMPT];
    int rc;

    o.threads = threads;
    rc = local_open(&m, dir, &o, &err);
    if (rc < 0) {
        printf("%s: %s\n", dir, err.text);
        return rc;
    }
    for (uint32_t i = 0; i < PROMPT; i++)
        ids[i] = (i * 37 + 11) % m.config.vocab;
    for (uint32_t s = 0; s < SEQUENCES; s++)
        rows[s] = (struct local_rows){.sequence_id = s, .count = 1 + s * (PROMPT - 1) / (SEQUENCES - 1), .ids = ids};
    *bytes = (size_t)SEQUENCES * m.config.vocab * sizeof(float);
    *logits = malloc(*bytes);
    for (uint32_t step = 0; step < STEPS && rc == 0; step++) {
        rc = local_step(&m, rows, SEQUENCES, false, *logits);
        for (uint32_t s = 0; s < SEQUENCES; s++) {
            rows[s].position += rows[s].count;
            rows[s].count = 1;
            rows[s].ids = &ids[step];
        }
    }
    local_close(&m);
    return rc;
}

/* What is no number is no result, in however many runs it comes out the same. */
static bool all_finite(const float *logits, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *logits; i++)
        if (!isfinite(logits[i]))
            return false;
    return bytes > 0;
}

int main(int argc, char **argv)
{
    int failures = argc < 2;

    for (int i = 1; i < argc; i++) {
        float *alone = NULL, *together = NULL;
        size_t bytes = 0;

        for (uint32_t threads = 2; threads <= 3; threads++) {
            bool same = run(argv[i], 1, &alone, &bytes) == 0 && run(argv[i], threads, &together, &bytes) == 0 &&
                        memcmp(alone, together, bytes) == 0;
            bool finite = same && all_finite(alone, bytes);

            printf("%s: %u threads %s 1%s\n", argv[i], threads, same ? "as" : "NOT as",
                   same && !finite ? ", but NOT finite" : "");
            failures += !finite;
            free(alone);
            free(together);
            alone = together = NULL;
        }
    }
    return failures != 0;
}
