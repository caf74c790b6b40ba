/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the seeds of fuzz_worker_reply: usage: write_reply_corpus FOLDER. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reply_script.h"
#include "wire/wire.h"

static const char *folder;

static void save(const char *name, enum reply_to to, const Dk__DataReply *r, size_t payload_bytes)
{
    static uint8_t bytes[1 + DK_DATA_HEADER_MAX + 4096];
    int n = dk_data_pack(&r->base, bytes + 1, DK_DATA_HEADER_MAX);
    char path[4096];
    size_t total;
    FILE *f;

    if (n < 0)
        exit(1);
    bytes[0] = (uint8_t)to;
    memset(bytes + 1 + n, 0x3f, payload_bytes);
    total = 1 + (size_t)n + payload_bytes;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, total, f) != total || fclose(f) != 0) {
        fprintf(stderr, "%s: cannot be written\n", path);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    size_t sums = (size_t)REPLY_ROWS * REPLY_HIDDEN * sizeof(float);
    Dk__DataReply r = DK__DATA_REPLY__INIT;
    Dk__ForwardReply forward = DK__FORWARD_REPLY__INIT;
    Dk__InitReply init = DK__INIT_REPLY__INIT;
    Dk__Status status = DK__STATUS__INIT;

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    r.plan_epoch = REPLY_EPOCH;
    forward.rows = REPLY_ROWS;
    forward.hidden_size = REPLY_HIDDEN;
    forward.has_compute_us = forward.has_weight_bytes = true;
    forward.compute_us = 12;
    forward.weight_bytes = 3456;
    r.result_case = DK__DATA_REPLY__RESULT_FORWARD;
    r.forward = &forward;
    save("sums_dense", REPLY_TO_DENSE, &r, sums);
    save("sums_short", REPLY_TO_DENSE, &r, sums - 4);
    save("sums_for_a_piece", REPLY_TO_PIECE, &r, sums);
    forward.layer = 1;
    save("sums_moe", REPLY_TO_MOE, &r, sums);
    save("sums_none", REPLY_TO_MOE, &r, 0);
    r.result_case = DK__DATA_REPLY__RESULT_INIT;
    r.init = &init;
    init.pieces_held = 2;
    init.complete = true;
    save("piece_taken", REPLY_TO_PIECE, &r, 0);
    save("piece_for_sums", REPLY_TO_DENSE, &r, 0);
    status.code = DK__CODE__RESOURCE_EXHAUSTED;
    status.text = "layer 0 needs 3 MiB, 1 MiB are free";
    r.result_case = DK__DATA_REPLY__RESULT_ERROR;
    r.error = &status;
    save("piece_refused", REPLY_TO_PIECE, &r, 0);
    save("sums_refused", REPLY_TO_MOE, &r, 0);
    status.text = NULL;
    save("refused_without_words", REPLY_TO_PIECE, &r, 0);
    status.code = DK__CODE__OK;
    save("piece_refused_with_ok", REPLY_TO_PIECE, &r, 0);
    save("sums_refused_with_ok", REPLY_TO_DENSE, &r, 0);
    r.result_case = DK__DATA_REPLY__RESULT__NOT_SET;
    save("nothing", REPLY_TO_PIECE, &r, 0);
    return 0;
}
