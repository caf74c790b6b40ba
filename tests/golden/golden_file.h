/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GOLDEN_FILE_H
#define GOLDEN_FILE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint.h"

/* Expected values. Everything here ends the test if a file or a value is missing. */

/* A file's bytes, from the heap. */
uint8_t *golden_bytes(const char *path, size_t *bytes);
json_t *golden_json(const char *path);
/* Numbers of object[key], from the heap. */
uint32_t *golden_ids(const json_t *object, const char *key, uint32_t *count);
double golden_number(const json_t *array, size_t i);

struct golden_tensors {
    uint8_t *bytes;
    struct dk_checkpoint *file;
};

void golden_tensors_open(struct golden_tensors *g, const char *path);
void golden_tensors_close(struct golden_tensors *g);
/* An aligned copy of the elements (f32 or i32), from the heap. */
void *golden_tensor(struct golden_tensors *g, size_t *count, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* |a - b|; a NaN counts as infinite. */
double golden_distance(double a, double b);
/* The largest of count. */
double golden_difference(const float *a, const float *b, size_t count);

#endif
