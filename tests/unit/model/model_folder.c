/* SPDX-License-Identifier: Apache-2.0 */
#include "model_folder.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void folder_make(struct model_folder *f)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(f->path, sizeof f->path, "%s/duckmodel.XXXXXX", tmp ? tmp : "/tmp");
    cr_assert(mkdtemp(f->path), "no folder for temporary files");
}

void folder_remove(struct model_folder *f)
{
    DIR *d = opendir(f->path);
    struct dirent *e;
    char path[1024];

    while (d && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", f->path, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlink(path) < 0)
            rmdir(path);
    }
    if (d)
        closedir(d);
    rmdir(f->path);
}

void folder_write(const struct model_folder *f, const char *name, const void *data, size_t bytes)
{
    char path[1024];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", f->path, name);
    file = fopen(path, "wb");
    cr_assert(file);
    cr_assert_eq(fwrite(data, 1, bytes, file), bytes);
    cr_assert_eq(fclose(file), 0);
}

void folder_text(const struct model_folder *f, const char *name, const char *text)
{
    folder_write(f, name, text, strlen(text));
}

uint8_t *safetensors_make(const char *header, size_t data_bytes, size_t *bytes)
{
    size_t n = strlen(header);
    uint8_t *p = malloc(8 + n + data_bytes);

    cr_assert(p);
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)((uint64_t)n >> 8 * i);
    memcpy(p + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++)
        p[8 + n + i] = (uint8_t)(i * 7 + 3);
    *bytes = 8 + n + data_bytes;
    return p;
}

void folder_safetensors(const struct model_folder *f, const char *name, const char *header, size_t data_bytes)
{
    size_t bytes;
    uint8_t *p = safetensors_make(header, data_bytes, &bytes);

    folder_write(f, name, p, bytes);
    folder_text(f, "config.json", "{}");
    free(p);
}

void expect_words(const char *text, const char *words)
{
    char copy[512], *save = NULL;

    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save))
        cr_expect(strstr(text, w), "\"%s\" does not say \"%s\"", text, w);
}
