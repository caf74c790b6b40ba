/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TEST_TENSOR_LIST_H
#define DK_TEST_TENSOR_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "model_folder.h"

/* The tensors of a checkpoint as a list that a test changes and writes as weight files. The files have the right
 * headers and lengths; the data are holes. */
struct tensor_item {
    char name[256], dtype[16];
    uint32_t rank;
    uint64_t shape[4];
    unsigned file; /* which of the files it goes to */
};

struct tensor_list {
    struct tensor_item *items;
    size_t count;
    char *config; /* text of config.json */
};

/* Of a folder of fixtures, all in file 0. Tensors of more than four dimensions (in the vision part) are left out. */
void tensor_list_of(struct tensor_list *l, const char *fixture);
/* An empty one. */
void tensor_list_begin(struct tensor_list *l, const char *config);
void tensor_list_end(struct tensor_list *l);

/* cols 0: a vector. */
void tensor_list_add(struct tensor_list *l, const char *name, const char *dtype, uint64_t rows, uint64_t cols);
struct tensor_item *tensor_list_get(struct tensor_list *l, const char *name);
void tensor_list_drop(struct tensor_list *l, const char *name);
/* Every name that starts with `from` then starts with `to`; "" takes the prefix away. */
void tensor_list_move(struct tensor_list *l, const char *from, const char *to);
/* Gives the type to every tensor with `part` in its name that is not FP8. */
void tensor_list_retype(struct tensor_list *l, const char *part, const char *dtype);
/* Puts the experts of each layer into one tensor for gate and up and one for down, of type BF16, without scales. */
void tensor_list_fuse(struct tensor_list *l, uint32_t layers, uint32_t experts);

/* Writes config.json, the files, and an index of them all when index is not 0. */
void tensor_list_write(const struct tensor_list *l, const struct model_folder *f, const char *const *files,
                       unsigned file_count, int index);

#endif
