/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/model.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "attention-worker/memory_budget.h"
#include "base/log.h"
#include "base/text.h"
#include "model/model_tensors.h"

#define PAGE_TOKENS       16u
#define UNUSED_LOGGED_MAX 8u
#define SKIPPED_PARTS_MAX 4u

static void copy_page(void *ctx, uint32_t from, uint32_t to)
{
    const struct worker_model *m = ctx;

    m->family->copy_page(m->layers, from, to);
}

static void copy_state(void *ctx, uint32_t from, uint32_t to)
{
    const struct worker_model *m = ctx;

    m->family->copy_state(m->layers, from, to);
}

static const struct dk_backend_ops *backend_find(const char *name)
{
    return strcmp(name, dk_backend_cpu.name) ? NULL : &dk_backend_cpu;
}

static unsigned long long mib(uint64_t bytes)
{
    return bytes >> 20;
}

/* Pages for every sequence at full context, or as many as there may be. Called before a weight is loaded. */
static int plan_memory(const struct worker_model *m, const struct worker_options *o,
                       const struct dk_family_needs *needs, uint32_t *pages, struct dk_err *err)
{
    const struct dk_memory_budget b = {
        .asked_bytes = o->cache_mib << 20,
        .free_bytes = dk_ram_free_bytes(),
        .weight_bytes = dk_memory_weight_bytes(&m->config, m->checkpoint, m->full_attention),
        .fixed_bytes = needs->fixed_bytes,
        .page_bytes = needs->page_bytes,
        .state_bytes = needs->state_bytes,
        .page_tokens = PAGE_TOKENS,
        .context = m->context,
        .sequences = m->sequences_max};
    struct dk_memory_grant grant;
    int rc = dk_memory_divide(&b, &grant, err);

    if (rc < 0)
        return rc;
    dk_log(grant.beyond ? DK_LOG_WARN : DK_LOG_INFO, grant.beyond ? "model.memory_short" : "model.memory",
           "free_mib=%llu weights_mib=%llu scratch_mib=%llu cache_mib=%llu states_mib=%llu pages=%u", mib(b.free_bytes),
           mib(b.weight_bytes), mib(b.fixed_bytes), mib(grant.pages_bytes), mib(grant.states_bytes), grant.pages);
    *pages = grant.pages;
    return 0;
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

/* Tensors that nobody asked for: parts of the release that are not run, and others. */
struct unused {
    const struct dk_model_config *config;
    struct {
        const char *part;
        uint32_t tensors;
    } skipped[SKIPPED_PARTS_MAX];
    uint32_t others;
};

static void count_unused(void *ctx, const struct dk_tensor *t)
{
    struct unused *u = ctx;
    const char *part = dk_model_tensor_skipped(u->config, t->name);

    for (uint32_t i = 0; part && i < SKIPPED_PARTS_MAX; i++) {
        if (!u->skipped[i].part || !strcmp(u->skipped[i].part, part)) {
            u->skipped[i].part = part;
            u->skipped[i].tensors++;
            return;
        }
    }
    if (u->others++ < UNUSED_LOGGED_MAX)
        dk_log(DK_LOG_WARN, "model.unused", "tensor=%s file=%s", t->name, t->file);
}

static void log_unused(const struct worker_model *m)
{
    struct unused u = {.config = &m->config};

    dk_checkpoint_unused(m->checkpoint, count_unused, &u);
    for (uint32_t i = 0; i < SKIPPED_PARTS_MAX && u.skipped[i].part; i++)
        dk_log(DK_LOG_INFO, "model.skipped", "part=\"%s\" tensors=%u", u.skipped[i].part, u.skipped[i].tensors);
    if (u.others)
        dk_log(DK_LOG_WARN, "model.unused", "dir=\"%s\" tensors=%u of %u", m->dir, u.others,
               dk_checkpoint_tensor_count(m->checkpoint));
}

/* The back end, the family's part of the weights in it, and the sequences' memory. */
static int open_layers(struct worker_model *m, const struct worker_options *o, struct dk_err *err)
{
    struct dk_backend_config backend = {.isa = o->node.isa_name,
                                        .threads = o->node.threads,
                                        .pin = o->node.pin,
                                        .rows_max = m->rows_max,
                                        .context = m->context};
    struct dk_family_load load = {.ops = m->backend_ops,
                                  .config = &m->config,
                                  .checkpoint = m->checkpoint,
                                  .page_tokens = PAGE_TOKENS,
                                  .state_slots = m->sequences_max,
                                  .full_attention = m->full_attention};
    struct dk_cache_shape shape = {
        .page_tokens = PAGE_TOKENS, .sequences_max = m->sequences_max, .context = m->context};
    const struct dk_cache_store store = {.ctx = m, .copy_page = copy_page, .copy_state = copy_state};
    struct dk_family_needs needs;
    int rc;

    dk_family_needs(&load, &backend, &needs);
    rc = plan_memory(m, o, &needs, &shape.pages, err);
    if (rc < 0)
        return rc;
    backend.scratch_floats_per_row = needs.scratch_floats_per_row;
    rc = m->backend_ops->open(&backend, &m->backend, err);
    if (rc < 0)
        return rc;
    load.backend = m->backend;
    load.pages = shape.pages;
    rc = m->family->load(&load, &m->layers, err);
    if (rc < 0)
        return rc;
    m->cache_tokens = (uint64_t)shape.pages * PAGE_TOKENS;
    rc = dk_cache_open(&shape, &store, &m->cache);
    return rc < 0 ? dk_err_set(err, rc, "no memory for a cache of %u pages", shape.pages) : 0;
}

int worker_model_open(struct worker_model *m, const struct worker_plan *plan, const struct worker_options *o,
                      struct dk_err *err)
{
    int rc;

    memset(m, 0, sizeof *m);
    dk_text_copy(m->dir, sizeof m->dir, plan->model_dir);
    m->context = plan->context;
    m->rows_max = plan->rows_max;
    m->sequences_max = plan->sequences_max;
    m->full_attention = plan->full_attention;
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
    rc = open_layers(m, o, err);
    if (rc < 0)
        return rc;
    log_unused(m);
    dk_log(DK_LOG_INFO, "model.open", "dir=\"%s\" type=%s layers=%u hidden=%u context=%u cache_tokens=%llu", m->dir,
           m->config.model_type, m->config.layers, m->config.hidden, m->context, (unsigned long long)m->cache_tokens);
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
           m->full_attention == plan->full_attention && !strcmp(m->backend_ops->name, plan->backend) &&
           m->files_stamp == files_stamp(m->dir);
}
