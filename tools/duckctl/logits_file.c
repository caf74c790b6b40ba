/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/logits_file.h"

#include <errno.h>
#include <string.h>

#define HEADER_BYTES 256

int logits_file_open(struct logits_file *f, const char *path, uint64_t rows_wanted, struct dk_err *err)
{
    memset(f, 0, sizeof *f);
    f->rows_wanted = rows_wanted;
    return output_file_open(&f->out, "--logits-out", path, err);
}

/* Padded with spaces to a fixed length, so that the data begins at a multiple of 8. False: not written. */
static bool header(struct logits_file *f, uint32_t vocab)
{
    char text[HEADER_BYTES + 1];
    uint64_t length = HEADER_BYTES;
    int n = snprintf(
        text, sizeof text, "{\"logits\":{\"dtype\":\"F32\",\"shape\":[%llu,%u],\"data_offsets\":[0,%llu]}}",
        (unsigned long long)f->rows_wanted, vocab, (unsigned long long)(f->rows_wanted * vocab * sizeof(float)));

    memset(text + n, ' ', (size_t)(HEADER_BYTES - n));
    f->vocab = vocab;
    return fwrite(&length, sizeof length, 1, f->out.file) == 1 && fwrite(text, HEADER_BYTES, 1, f->out.file) == 1;
}

int logits_file_append(struct logits_file *f, const uint8_t *data, size_t bytes, uint32_t vocab, struct dk_err *err)
{
    if (!vocab || (f->vocab && vocab != f->vocab) || bytes % (vocab * sizeof(float)))
        return dk_err_set(err, -EBADMSG, "logits of %zu bytes are not rows of %u values", bytes, vocab);
    if ((!f->vocab && !header(f, vocab)) || fwrite(data, 1, bytes, f->out.file) != bytes)
        return output_file_error(&f->out, err);
    f->rows += bytes / (vocab * sizeof(float));
    return 0;
}

int logits_file_flush(struct logits_file *f, struct dk_err *err)
{
    if (!f->out.file)
        return 0;
    if (f->rows != f->rows_wanted)
        return dk_err_set(err, -EIO, "--logits-out %s: %llu of %llu rows came; no file was made", f->out.path,
                          (unsigned long long)f->rows, (unsigned long long)f->rows_wanted);
    return fflush(f->out.file) == 0 ? 0 : output_file_error(&f->out, err);
}

int logits_file_finish(struct logits_file *f, bool complete, struct dk_err *err)
{
    int rc = complete ? logits_file_flush(f, err) : 0;
    int out_rc = output_file_finish(&f->out, complete && rc == 0, err);

    return rc ? rc : out_rc;
}
