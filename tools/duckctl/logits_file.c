/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/logits_file.h"

#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_BYTES 256

int logits_file_open(struct logits_file *f, const char *path, uint64_t rows_wanted, struct dk_err *err)
{
    memset(f, 0, sizeof *f);
    f->path = path;
    f->rows_wanted = rows_wanted;
    f->file = fopen(path, "wb");
    return f->file ? 0 : dk_err_set(err, -errno, "--logits-out %s: %s", path, strerror(errno));
}

/* Padded with spaces to a fixed length, so that the data begins at a multiple of 8. */
static int header(struct logits_file *f, uint32_t vocab)
{
    char text[HEADER_BYTES + 1];
    uint64_t length = HEADER_BYTES;
    int n = snprintf(
        text, sizeof text, "{\"logits\":{\"dtype\":\"F32\",\"shape\":[%llu,%u],\"data_offsets\":[0,%llu]}}",
        (unsigned long long)f->rows_wanted, vocab, (unsigned long long)(f->rows_wanted * vocab * sizeof(float)));

    memset(text + n, ' ', (size_t)(HEADER_BYTES - n));
    f->vocab = vocab;
    return fwrite(&length, sizeof length, 1, f->file) == 1 && fwrite(text, HEADER_BYTES, 1, f->file) == 1 ? 0 : -errno;
}

int logits_file_append(struct logits_file *f, const uint8_t *data, size_t bytes, uint32_t vocab, struct dk_err *err)
{
    if (!vocab || (f->vocab && vocab != f->vocab) || bytes % (vocab * sizeof(float)))
        return dk_err_set(err, -EBADMSG, "logits of %zu bytes are not rows of %u values", bytes, vocab);
    if ((!f->vocab && header(f, vocab) < 0) || fwrite(data, 1, bytes, f->file) != bytes)
        return dk_err_set(err, -errno, "--logits-out %s: %s", f->path, strerror(errno));
    f->rows += bytes / (vocab * sizeof(float));
    return 0;
}

int logits_file_finish(struct logits_file *f, struct dk_err *err)
{
    struct stat st;
    bool regular;
    int rc = 0;

    if (!f->file)
        return 0;
    regular = fstat(fileno(f->file), &st) == 0 && S_ISREG(st.st_mode);
    if (fclose(f->file) != 0)
        rc = dk_err_set(err, -errno, "--logits-out %s: %s", f->path, strerror(errno));
    else if (f->rows != f->rows_wanted)
        rc = dk_err_set(err, -EIO, "--logits-out %s: %llu of %llu rows came; the file was removed", f->path,
                        (unsigned long long)f->rows, (unsigned long long)f->rows_wanted);
    if (rc < 0 && regular) /* never a device or a pipe */
        unlink(f->path);
    f->file = NULL;
    return rc;
}
