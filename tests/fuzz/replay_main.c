/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over a corpus folder and over seeded mutations of it: usage: PROGRAM CORPUS MUTATIONS [SEED].
 * What libFuzzer found once stays covered in ordinary test runs and under every sanitizer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct sample {
    uint8_t *data;
    size_t size;
};

static uint64_t rng_state = 1;

static uint64_t rng_next(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

static int sample_read(const char *path, struct sample *s)
{
    FILE *f = fopen(path, "rb");
    long size;

    if (!f)
        return -1;
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    s->data = malloc(size > 0 ? (size_t)size : 1);
    s->size = s->data ? fread(s->data, 1, (size_t)size, f) : 0;
    fclose(f);
    return s->data ? 0 : -1;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static size_t mutate(uint8_t *to, size_t capacity, const struct sample *s)
{
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff};
    size_t size = s->size < capacity ? s->size : capacity;
    unsigned count = 1 + (unsigned)(rng_next() % 6);

    memcpy(to, s->data, size);
    while (count--) {
        size_t at = size ? rng_next() % size : 0, n = 1 + rng_next() % 8;

        switch (rng_next() % 6) {
        case 0:
            if (size)
                to[at] ^= (uint8_t)(1u << rng_next() % 8);
            break;
        case 1:
            if (size)
                to[at] = (uint8_t)rng_next();
            break;
        case 2:
            size = at;
            break;
        case 3: /* cut out */
            n = n < size - at ? n : size - at;
            memmove(to + at, to + at + n, size - at - n);
            size -= n;
            break;
        case 4: /* repeat */
            n = n < size - at ? n : size - at;
            if (size + n <= capacity) {
                memmove(to + at + n, to + at, size - at);
                size += n;
            }
            break;
        default:
            for (size_t i = at; i < size && i < at + n; i++)
                to[i] = edges[rng_next() % sizeof edges];
        }
    }
    return size;
}

int main(int argc, char **argv)
{
    char *names[4096];
    struct sample samples[4096];
    size_t count = 0, used = 0, largest = 64;
    struct dirent *e;
    uint8_t *buffer;
    long mutations;
    DIR *dir;

    if (argc < 3 || !(dir = opendir(argv[1]))) {
        fprintf(stderr, "usage: %s CORPUS MUTATIONS [SEED]; CORPUS must be a folder\n", argv[0]);
        return 2;
    }
    mutations = atol(argv[2]);
    rng_state = argc > 3 ? strtoull(argv[3], NULL, 10) | 1 : 88172645463325252u;
    while ((e = readdir(dir)) && count < sizeof names / sizeof *names)
        if (e->d_name[0] != '.')
            names[count++] = strdup(e->d_name);
    closedir(dir);
    qsort(names, count, sizeof *names, by_name); /* folders list in any order; a run must be repeatable */
    for (size_t i = 0; i < count; i++) {
        char path[4096];

        snprintf(path, sizeof path, "%s/%s", argv[1], names[i]);
        free(names[i]);
        if (sample_read(path, &samples[used]) == 0)
            used++;
    }
    if (!used) {
        fprintf(stderr, "%s: the corpus is empty\n", argv[1]);
        return 2;
    }
    for (size_t i = 0; i < used; i++) {
        LLVMFuzzerTestOneInput(samples[i].data, samples[i].size);
        largest = samples[i].size > largest ? samples[i].size : largest;
    }
    buffer = malloc(2 * largest);
    for (long i = 0; buffer && i < mutations; i++)
        LLVMFuzzerTestOneInput(buffer, mutate(buffer, 2 * largest, &samples[rng_next() % used]));
    printf("%zu inputs and %ld mutations replayed\n", used, mutations);
    free(buffer);
    for (size_t i = 0; i < used; i++)
        free(samples[i].data);
    return 0;
}
