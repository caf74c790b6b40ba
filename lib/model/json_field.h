/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_JSON_FIELD_H
#define DK_MODEL_JSON_FIELD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* A text that must be one JSON object; *root is the caller's, NULL after a failure. flags: those of json_loadb(). A
 * whole number that 64 bits do not hold becomes a real one (Python writes such numbers, 1e30 for "no limit"): a field
 * that nobody reads must not make the file unreadable. -EINVAL: `where`, and the line. */
int dk_json_object_parse(const char *text, size_t bytes, size_t flags, const char *where, json_t **root,
                         struct dk_err *err);

/* Typed fields of a JSON object from outside. A field that is absent or null counts as not there. Errors name `where`,
 * the field, its value and what is allowed; the first one stays in rc, and later calls then do nothing, so a caller may
 * read many fields and look at rc once. */
struct dk_json_reader {
    const json_t *object;
    const char *where;  /* file, and the path of the object in it: "config.json: rope_parameters" */
    struct dk_err *err; /* may be NULL */
    int rc;
};

/* Begins to read the object in a field: *in shares r's err. where: room for the path of that object, which must
 * live as long as *in. False when the field is not there, or is no object (-EINVAL). */
bool dk_json_enter(struct dk_json_reader *r, const char *name, struct dk_json_reader *in, char *where,
                   size_t where_bytes);
/* Ends it: the first error of *in becomes r's. */
void dk_json_leave(struct dk_json_reader *r, const struct dk_json_reader *in);

/* NULL when the field is absent or null. */
const json_t *dk_json_field(const struct dk_json_reader *r, const char *name);
/* -EINVAL if it is missing. */
void dk_json_need(struct dk_json_reader *r, const char *name);

/* *out keeps its value, the default, when the field is not there. Returns whether it was there and good. */
bool dk_json_u32(struct dk_json_reader *r, const char *name, uint32_t least, uint32_t most, uint32_t *out);
bool dk_json_double(struct dk_json_reader *r, const char *name, double least, double most, double *out);
bool dk_json_bool(struct dk_json_reader *r, const char *name, bool *out);
bool dk_json_text(struct dk_json_reader *r, const char *name, const char **out); /* borrowed from the object */
/* One number or a list of at most `most_count` numbers. */
bool dk_json_u32_list(struct dk_json_reader *r, const char *name, uint32_t most, uint32_t *out, uint32_t most_count,
                      uint32_t *count);

/* Fails with rc unless it has failed before: "<where>: <name> is <value>; <allowed>". */
void dk_json_refuse(struct dk_json_reader *r, int rc, const char *name, const char *allowed);

#endif
