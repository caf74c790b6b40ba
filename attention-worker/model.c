/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/model.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/text.h"

#define PAGE_TOKENS       16u
#define UNUSED_LOGGED_MAX 8u

static const struct dk_backend_ops *backend_find(const char *name)
{
    return strcmp(name, dk_backend_cpu.name) ? NULL : &dk_backend_cpu;
}

/* Pages for every sequence at full context, or what --cache-mib allows. */
static uint32_t cache_pages(const struct worker_model *m, const struct worker_options *o, uint32_t sequences)
{
    uint64_t per_sequence = (m->context + PAGE_TOKENS - 1) / PAGE_TOKENS;
    uint64_t pages = per_sequence * sequences;
    uint64_t page_bytes = (uint64_t)PAGE_TOKENS * m->config.layers * m->config.kv_heads * m->config.head_dim * 2 *
                          sizeof(float);
    uint64_t allowed = o->cache_mib ? (o->cache_mib << 20) / page_bytes : dk_ram_free_bytes() / 2 / page_bytes;

    pages = pages < allowed ? pages : allowed;
    return (uint32_t)(pages < per_sequence ? per_sequence : pages);
}

static uint64_t mix(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 1099511628211u; /* FNV-1a */
    return h;
}

/* Names, sizes and times of the files in a folder, in any order. dk_checkpoint_id does not tell that weights were
 * repaired or replaced: it is made from the headers. */
static uint64_t files_stamp(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *e;
    uint64_t sum = 0;

    while (dir && (e = readdir(dir))) {
        uint64_t h = mix(14695981039346656037u, e->d_name, strlen(e->d_name));
        struct stat st;

        if (e->d_name[0] == '.' || fstatat(dirfd(dir), e->d_name, &st, 0) < 0)
            continue;
        h = mix(h, &st.st_dev, sizeof st.st_dev);
        h = mix(h, &st.st_ino, sizeof st.st_ino);
        h = mix(h, &st.st_size, sizeof st.st_size);
        sum += mix(h, &st.st_mtim, sizeof st.st_mtim);
    }
    if (dir)
        closedir(dir);
    return sum;
}

struct unused {
    uint32_t count;
};

static void log_unused(void *ctx, const struct dk_tensor *t)
{
    struct unused *u = ctx;

    if (u->count++ < UNUSED_LOGGED_MAX)
        dk_log(DK_LOG_WARN, "model.unused", "tensor=%s file=%s", t->name, t->file);
}

int worker_model_open(struct worker_model *m, const struct worker_plan *plan, const struct worker_options *o,
                      struct dk_err *err)
{
    struct dk_backend_config backend = {
        .isa = o->node.isa_name, .threads = o->node.threads, .pin = o->node.pin, .rows_max = plan->rows_max};
    struct unused unused = {0};
    uint32_t pages;
    int rc;

    memset(m, 0, sizeof *m);
    dk_text_copy(m->dir, sizeof m->dir, plan->model_dir);
    m->context = plan->context;
    m->rows_max = plan->rows_max;
    m->sequences_max = plan->sequences_max;
    m->page_tokens = PAGE_TOKENS;
    m->backend_ops = backend_find(plan->backend);
    if (!m->backend_ops)
        return dk_err_set(err, -ENOTSUP, "back end '%s': this worker was built with: cpu", plan->backend);
    m->files_stamp = files_stamp(m->dir); /* before reading: a change while reading makes the stamp old */
    rc = dk_model_config_load(m->dir, &m->config, err);
    if (rc == 0)
        rc = dk_checkpoint_open(m->dir, &m->checkpoint, err);
    if (rc < 0)
        return rc;
    m->id = dk_checkpoint_id(m->checkpoint);
    if (m->id != plan->model_id)
        return dk_err_set(
            err, -ENOENT,
            "%s: the worker's host has another model in this folder than the coordinator's host; copy the "
            "same files to both",
            m->dir);
    m->family = dk_family_find(m->config.family);
    if (!m->family)
        return dk_err_set(err, -ENOTSUP, "%s: model_type '%s' is not implemented in this worker", m->dir,
                          m->config.model_type);
    backend.context = m->context;
    backend.scratch_floats_per_row = dk_family_scratch(&m->config);
    rc = m->backend_ops->open(&backend, &m->backend, err);
    if (rc < 0)
        return rc;
    pages = cache_pages(m, o, plan->sequences_max);
    rc = m->family->load(m->backend_ops, m->backend, &m->config, m->checkpoint, PAGE_TOKENS, pages, &m->layers, err);
    if (rc < 0)
        return rc;
    m->cache_tokens = (uint64_t)pages * PAGE_TOKENS;
    rc = dk_cache_open(PAGE_TOKENS, pages, plan->sequences_max, m->context, &m->cache);
    if (rc < 0)
        return dk_err_set(err, rc, "no memory for a cache of %u pages", pages);
    dk_checkpoint_unused(m->checkpoint, log_unused, &unused);
    if (unused.count)
        dk_log(DK_LOG_WARN, "model.unused", "dir=\"%s\" tensors=%u of %u", m->dir, unused.count,
               dk_checkpoint_tensor_count(m->checkpoint));
    dk_log(DK_LOG_INFO, "model.open", "dir=\"%s\" type=%s layers=%u hidden=%u context=%u cache_tokens=%u", m->dir,
           m->config.model_type, m->config.layers, m->config.hidden, m->context, pages * PAGE_TOKENS);
    return 0;
}

void worker_model_close(struct worker_model *m)
{
    if (m->layers)
        m->family->close(m->layers);
    dk_cache_close(m->cache);
    if (m->backend)
        m->backend_ops->close(m->backend);
    dk_checkpoint_close(m->checkpoint);
    memset(m, 0, sizeof *m);
}

bool worker_model_serves(const struct worker_model *m, const struct worker_plan *plan)
{
    return m->layers && m->id == plan->model_id && !strcmp(m->dir, plan->model_dir) && m->context == plan->context &&
           m->rows_max == plan->rows_max && m->sequences_max == plan->sequences_max &&
           !strcmp(m->backend_ops->name, plan->backend) && m->files_stamp == files_stamp(m->dir);
}
