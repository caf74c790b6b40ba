/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TEST_MODEL_FOLDER_H
#define DK_TEST_MODEL_FOLDER_H

#include <stddef.h>
#include <stdint.h>

/* A folder for one test, to be filled with files that are wrong in one way. */
struct model_folder {
    char path[256];
};

void folder_make(struct model_folder *f);
void folder_remove(struct model_folder *f); /* with the files in it */
void folder_write(const struct model_folder *f, const char *name, const void *data, size_t bytes);
void folder_text(const struct model_folder *f, const char *name, const char *text);

/* The bytes of a safetensors file: header is the JSON text; data_bytes bytes follow, byte i of them (i * 7 + 3) & 255.
 * free() the result. */
uint8_t *safetensors_make(const char *header, size_t data_bytes, size_t *bytes);
/* The same as a file, with a config.json beside it. */
void folder_safetensors(const struct model_folder *f, const char *name, const char *header, size_t data_bytes);

/* Fails the test unless text contains all words of words, which are separated by '|'. */
void expect_words(const char *text, const char *words);

#endif
