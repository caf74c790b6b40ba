/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_TRACE_FILE_H
#define DUCKCTL_TRACE_FILE_H

#include "duckctl/output_file.h"
#include "wire/wire.h"

/* The layers of a text such as "0,3-5": layers [*count], rising, once each; malloc'ed. USAGE_ERROR: err names the
 * option and the place. */
int trace_layers_parse(const char *text, uint32_t **layers, size_t *count, struct dk_err *err);

/* Collects the tensors of a trace, and writes them into a safetensors file together with "ids" I32 [tokens]. */
struct trace_file {
    struct output_file out;
    Dk__TraceTensor **tensors; /* owned; the first one is ids */
    size_t count, capacity;
};

/* Creates the file, so that what forbids it is known before anything is computed. */
int trace_file_open(struct trace_file *f, const char *path, const uint32_t *ids, size_t count, struct dk_err *err);
/* Copies the tensor. -EBADMSG: its data do not fill its shape, or the name has come already; -ENOMEM. */
int trace_file_add(struct trace_file *f, const Dk__TraceTensor *t, struct dk_err *err);
/* Writes everything if `complete`, and puts the file into its place. -EIO: no tensor came; or what writing gave: there
 * is then no new file. Fine on a zeroed one. */
int trace_file_finish(struct trace_file *f, bool complete, struct dk_err *err);

#endif
