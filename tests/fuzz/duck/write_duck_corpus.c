/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the seeds of fuzz_duck_request: usage: write_duck_corpus FOLDER. Small, so that mutations meet the headers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duck_messages.h"

static uint8_t message[DUCK_MESSAGES_BYTES_MAX];

static void save(const char *folder, const char *name, size_t bytes)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (!f || fwrite(message, 1, bytes, f) != bytes || fclose(f) != 0) {
        fprintf(stderr, "%s: cannot be written\n", path);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    uint32_t width = DUCK_MESSAGES_END - DUCK_MESSAGES_BEGIN;
    const char *to = argc > 1 ? argv[1] : "";
    size_t n;

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    save(to, "forward_dense", duck_message_forward(message, false, 1));
    save(to, "forward_dense_rows", duck_message_forward(message, false, 5));
    save(to, "forward_moe", duck_message_forward(message, true, 1));
    save(to, "forward_moe_rows", duck_message_forward(message, true, 3));
    save(to, "init_dense_tail", duck_message_init(message, false, DUCK_MESSAGES_EPOCH, 64, width, 0, 1));
    save(to, "init_dense_unit", duck_message_init(message, false, DUCK_MESSAGES_EPOCH, 0, 32, 0, 1));
    save(to, "init_moe_tail", duck_message_init(message, true, DUCK_MESSAGES_EPOCH, 64, width, 3, 4));
    save(to, "init_moe_experts", duck_message_init(message, true, DUCK_MESSAGES_EPOCH, 64, width, 1, 4));
    save(to, "init_new_epoch", duck_message_init(message, true, DUCK_MESSAGES_EPOCH + 1, 64, width, 0, 1));
    save(to, "init_old_epoch", duck_message_init(message, false, DUCK_MESSAGES_EPOCH - 1, 64, width, 0, 1));
    n = duck_message_init(message, true, DUCK_MESSAGES_EPOCH, 64, width, 3, 4);
    message[200] = 0x7f; /* a NaN among the weights */
    save(to, "init_moe_nan", n);
    n = duck_message_forward(message, true, 1);
    memset(message + n - 8, 0xff, 8); /* NaN weights */
    save(to, "forward_moe_nan", n);
    save(to, "forward_cut", duck_message_forward(message, false, 2) - 100);
    memset(message, 0, 64);
    message[0] = 60;
    message[4] = 15 << 3 | 2; /* only padding */
    message[5] = 58;
    save(to, "header_empty", 64);
    message[0] = 0;
    save(to, "header_none", 4);
    return 0;
}
