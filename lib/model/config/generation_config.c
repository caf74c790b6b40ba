/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/config.h"
#include "model/file_read.h"
#include "model/json_field.h"

#define CONFIG_BYTES_MAX (16u << 20)
#define TOKEN_MAX        ((1u << 22) - 1) /* as the largest vocab_size of a config */
#define EOS_MAX          (sizeof((struct dk_generation_config *)0)->eos / sizeof(uint32_t))

/* Opens dir/name as a JSON object; *root is NULL on failure. */
static int object_load(const char *dir, const char *name, json_t **root, struct dk_err *err)
{
    char where[400], *text;
    size_t bytes;
    int rc;

    *root = NULL;
    rc = dk_file_read(dir, name, CONFIG_BYTES_MAX, &text, &bytes, err);
    if (rc < 0)
        return rc;
    snprintf(where, sizeof where, "%s/%s", dir, name);
    rc = dk_json_object_parse(text, bytes, JSON_REJECT_DUPLICATES, where, root, err);
    free(text);
    return rc;
}

static void sampling_read(struct dk_json_reader *r, struct dk_generation_config *out)
{
    const json_t *k = dk_json_field(r, "top_k");
    double penalty = 1;
    bool sample = false;

    dk_json_bool(r, "do_sample", &sample);
    out->temperature = 1;
    dk_json_double(r, "temperature", 0, 100, &out->temperature);
    if (!sample)
        out->temperature = 0;
    dk_json_double(r, "top_p", 0, 1, &out->top_p);
    if (out->top_p == 0)
        dk_json_refuse(r, -EINVAL, "top_p", "a number above 0 and up to 1 is allowed");
    if (!json_is_integer(k) || json_integer_value(k) != -1) /* -1: some releases write "off" so */
        dk_json_u32(r, "top_k", 0, TOKEN_MAX, &out->top_k);
    if (dk_json_double(r, "repetition_penalty", 0, 1e9, &penalty) && penalty != 1)
        dk_log(DK_LOG_WARN, "model.generation_config", "field=repetition_penalty value=%g ignored=1", penalty);
}

static void eos_read(struct dk_json_reader *r, struct dk_generation_config *out)
{
    dk_json_u32_list(r, "eos_token_id", TOKEN_MAX, out->eos, EOS_MAX, &out->eos_count);
}

/* Multimodal releases have the language model's fields in "text_config". */
static void config_eos_read(struct dk_json_reader *r, struct dk_generation_config *out)
{
    struct dk_json_reader in;
    char where[500];

    eos_read(r, out);
    if (out->eos_count > 0 || !dk_json_enter(r, "text_config", &in, where, sizeof where))
        return;
    eos_read(&in, out);
    dk_json_leave(r, &in);
}

int dk_generation_config_load(const char *dir, struct dk_generation_config *out, struct dk_err *err)
{
    struct dk_json_reader r = {.err = err};
    struct dk_err unread = {0};
    char where[400];
    json_t *root;
    int rc;

    memset(out, 0, sizeof *out);
    out->top_p = 1;
    rc = object_load(dir, "generation_config.json", &root, &unread);
    if (rc < 0 && rc != -ENOENT)
        return dk_err_set(err, rc, "%s", unread.text);
    if (rc == 0) {
        snprintf(where, sizeof where, "%s/generation_config.json", dir);
        r.object = root;
        r.where = where;
        sampling_read(&r, out);
        eos_read(&r, out);
        json_decref(root);
        if (r.rc < 0)
            return r.rc;
    }
    if (out->eos_count > 0)
        return 0;
    rc = object_load(dir, "config.json", &root, err);
    if (rc < 0)
        return rc;
    snprintf(where, sizeof where, "%s/config.json", dir);
    r.object = root;
    r.where = where;
    config_eos_read(&r, out);
    json_decref(root);
    if (r.rc == 0 && out->eos_count == 0)
        dk_log(DK_LOG_WARN, "model.generation_config", "field=eos_token_id absent=1 dir=\"%s\"", dir);
    return r.rc;
}
