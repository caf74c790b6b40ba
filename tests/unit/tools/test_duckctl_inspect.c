/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl inspect on folders made by hand; tests/e2e/inspect.py looks at the fixtures and the releases. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "captured.h"
#include "duckctl/duckctl.h"

static char folder[32];
static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors"};

static void set_up(void)
{
    strcpy(folder, "/tmp/dkinsXXXXXX");
    cr_assert(mkdtemp(folder));
}

static void path_of(const char *name, char *out, size_t room)
{
    snprintf(out, room, "%s/%s", folder, name);
}

static void tear_down(void)
{
    char path[80];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        path_of(files[i], path, sizeof path);
        unlink(path);
    }
    rmdir(folder);
}

TestSuite(inspect, .init = set_up, .fini = tear_down);

static void write_file(const char *name, const void *data, size_t bytes)
{
    char path[80];
    FILE *f;

    path_of(name, path, sizeof path);
    f = fopen(path, "wb");
    cr_assert(f && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
}

/* Two layers of 3 heads and 1 for keys and values, of 32: q and o 96 x 64, k and v 32 x 64, two norms of 32 and two of
 * 64; 3 * 160 x 64 of feed-forward. Embedding and head of 100 x 64, a norm of 64. */
#define WORKER_PARAMETERS (2 * (2 * 96 * 64 + 2 * 32 * 64 + 2 * 32 + 2 * 64) + 2 * 100 * 64 + 64)
#define DUCKS_PARAMETERS  (2 * 3 * 160 * 64)

#define CONFIG                                                                                                       \
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":64,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":3,\"num_key_value_heads\":1,\"head_dim\":32,\"intermediate_size\":160,\"vocab_size\":"  \
    "100,"                                                                                                           \
    "\"max_position_embeddings\":3000,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,\"hidden_act\":\"silu\","           \
    "\"tie_word_embeddings\":false,\"eos_token_id\":7"

static void write_config(const char *more)
{
    char text[1000];

    snprintf(text, sizeof text, CONFIG "%s}", more);
    write_file("config.json", text, strlen(text));
}

/* --json of inspect; the exit code must be rc. */
static json_t *inspect(int rc, const char *option)
{
    struct captured c = captured_duckctl("inspect", folder, "--json", option, NULL);
    json_t *o = json_loads(c.out, 0, NULL);

    cr_assert_eq(c.rc, rc, "%d %s%s", c.rc, c.out, c.err);
    cr_assert(o, "%s", c.out);
    captured_free(&c);
    return o;
}

static json_int_t number(const json_t *o, const char *name)
{
    const json_t *n = json_object_get(o, name);

    cr_assert(json_is_integer(n), "%s is not a whole number", name);
    return json_integer_value(n);
}

static const json_t *part(const json_t *o, size_t i)
{
    return json_array_get(json_object_get(o, "parts"), i);
}

Test(inspect, a_config_alone)
{
    json_t *o, *worker, *flocks;

    write_config("");
    o = inspect(EXIT_DONE, "--ducks=3");
    cr_assert_eq(number(o, "parameters"), WORKER_PARAMETERS + DUCKS_PARAMETERS);
    cr_assert_eq(number(o, "active_parameters"), WORKER_PARAMETERS + DUCKS_PARAMETERS);
    cr_assert_str_eq(json_string_value(json_object_get(o, "weights")), "none");
    cr_assert_str_eq(json_string_value(json_object_get(o, "dtype")), "BF16");
    cr_assert_eq(number(part(o, 0), "parameters"), WORKER_PARAMETERS);
    cr_assert_eq(number(part(o, 0), "bytes"), 2 * WORKER_PARAMETERS);
    cr_assert_eq(number(part(o, 1), "parameters"), DUCKS_PARAMETERS);
    cr_assert_eq(number(part(o, 1), "tensors"), 6);
    worker = json_object_get(o, "worker");
    cr_assert_eq(number(worker, "weight_bytes"), 2 * WORKER_PARAMETERS);
    cr_assert_eq(number(worker, "cache_bytes_per_1000_tokens"), 1000 * 2 * 2 * 32 * 4);
    cr_assert_eq(number(worker, "context"), 3000);
    cr_assert_eq(number(worker, "sequence_bytes"), 3000 * 2 * 2 * 32 * 4);
    flocks = json_object_get(o, "flocks");
    cr_assert_eq(json_array_size(flocks), 7);
    cr_assert_eq(number(json_array_get(flocks, 2), "ducks"), 3);
    cr_assert_eq(number(json_array_get(flocks, 4), "ducks"), 8);
    cr_assert_eq(number(json_array_get(flocks, 4), "busy"), 5, "160 rows in units of 32");
    cr_assert(json_is_null(json_object_get(o, "tokenizer")));
    json_decref(o);
}

Test(inspect, types_of_the_config)
{
    json_t *o;

    write_config(",\"torch_dtype\":\"float32\"");
    o = inspect(EXIT_DONE, NULL);
    cr_assert_eq(number(part(o, 0), "bytes"), 4 * WORKER_PARAMETERS);
    json_decref(o);
    /* Linear layers in FP8 with BF16 scales: q and o 1 x 1 blocks, k and v 1 x 1; gate and up 2 x 1, down 1 x 2. */
    write_config(
        ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\","
        "\"weight_block_size\":[128,128]}");
    o = inspect(EXIT_DONE, NULL);
    cr_assert(json_is_true(json_object_get(o, "fp8")));
    cr_assert_eq(number(part(o, 1), "bytes"), DUCKS_PARAMETERS + 2 * 3 * 2 * 2);
    cr_assert_eq(number(part(o, 1), "tensors"), 12);
    cr_assert_eq(number(part(o, 0), "bytes"), 2 * WORKER_PARAMETERS - 2 * (2 * 96 * 64 + 2 * 32 * 64) + 2 * 4 * 2);
    json_decref(o);
}

Test(inspect, numbers_of_ducks)
{
    static const struct {
        const char *option;
        size_t count;
    } cases[] = {{"--ducks=1", 6}, {"--ducks=32", 6}, {"--ducks=31", 7}, {"--ducks=33", 7}, {"--ducks=64", 7}};

    write_config("");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *o = inspect(EXIT_DONE, cases[i].option), *flocks = json_object_get(o, "flocks");

        cr_assert_eq(json_array_size(flocks), cases[i].count, "%s", cases[i].option);
        for (size_t k = 1; k < json_array_size(flocks); k++)
            cr_assert_gt(number(json_array_get(flocks, k), "ducks"), number(json_array_get(flocks, k - 1), "ducks"));
        json_decref(o);
    }
}

static bool problem_names(const json_t *problems, const char *part)
{
    size_t i;
    json_t *p;

    json_array_foreach(problems, i, p) if (strstr(json_string_value(p), part)) return true;
    return false;
}

Test(inspect, problems_give_exit_code_1)
{
    static const char header[] = "{\"stray\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    uint64_t length = sizeof header - 1;
    char raw[200] = {0};
    json_t *o, *problems;

    write_config("");
    write_file("model.safetensors", "short", 5);
    o = inspect(EXIT_REFUSED, NULL);
    cr_assert_str_eq(json_string_value(json_object_get(o, "weights")), "damaged");
    cr_assert(strstr(json_string_value(json_array_get(json_object_get(o, "problems"), 0)), "model.safetensors"));
    cr_assert_eq(number(part(o, 0), "bytes"), 2 * WORKER_PARAMETERS, "computed all the same");
    json_decref(o);
    memcpy(raw, &length, sizeof length);
    memcpy(raw + 8, header, length);
    write_file("model.safetensors", raw, 8 + length + 4);
    o = inspect(EXIT_REFUSED, NULL);
    problems = json_object_get(o, "problems");
    /* Each layer has two norms, four of attention with two more norms, three of feed-forward; embedding, norm, head. */
    cr_assert_eq(number(o, "problem_count"), 2 * (2 + 4 + 2 + 3) + 3 + 1);
    cr_assert_eq(json_array_size(problems), 20);
    cr_assert(problem_names(problems, "model.layers.0.self_attn.q_proj.weight"));
    cr_assert(problem_names(problems, "model.layers.1.input_layernorm.weight"));
    cr_assert_eq(number(part(o, 0), "parameters"), 0, "none of them is there");
    cr_assert_eq(number(part(o, 1), "parameters"), 0);
    cr_assert_eq(number(part(o, 2), "bytes"), 4);
    json_decref(o);
    write_file("generation_config.json", "{", 1);
    o = inspect(EXIT_REFUSED, NULL);
    cr_assert_eq(number(o, "problem_count"), 2 * 11 + 3 + 1 + 1);
    json_decref(o);
}

Test(inspect, only_what_is_there_counts)
{
    static const char header[] = "{\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[64],\"data_offsets\":[0,256]}}";
    uint64_t length = sizeof header - 1;
    char raw[500] = {0};
    json_t *o;

    write_config("");
    memcpy(raw, &length, sizeof length);
    memcpy(raw + 8, header, length);
    write_file("model.safetensors", raw, 8 + length + 256);
    o = inspect(EXIT_REFUSED, NULL);
    cr_assert_eq(number(part(o, 0), "parameters"), 64);
    cr_assert_eq(number(part(o, 0), "bytes"), 256);
    cr_assert_eq(number(part(o, 0), "tensors"), 1);
    cr_assert_eq(number(o, "parameters"), WORKER_PARAMETERS + DUCKS_PARAMETERS, "what the config says");
    cr_assert_eq(number(o, "problem_count"), 2 * 11 + 2);
    json_decref(o);
}

Test(inspect, without_a_config_it_fails)
{
    struct captured c = captured_duckctl("inspect", folder, NULL);

    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert(strstr(c.err, "config.json") && strstr(c.err, folder), "%s", c.err);
    captured_free(&c);
    write_config("");
    c = captured_duckctl("inspect", folder, "--context", "3001", NULL);
    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert(strstr(c.err, "3001") && strstr(c.err, "3000"), "%s", c.err);
    captured_free(&c);
}

Test(inspect, for_people)
{
    struct captured c;

    write_config("");
    c = captured_duckctl("inspect", folder, "--ducks", "8", NULL);
    cr_assert_eq(c.rc, EXIT_DONE);
    cr_assert_str_eq(c.err, "");
    cr_assert(strstr(c.out, "\nlayers       2: 2 full attention with a dense feed-forward\n"), "%s", c.out);
    cr_assert(strstr(c.out, "\nattention    3 heads, 1 for keys and values, of 32, normed\n"), "%s", c.out);
    cr_assert(strstr(c.out, "\nend tokens   7\n"), "%s", c.out);
    cr_assert(strstr(c.out, "none in this folder\n             sizes computed from config.json: BF16\n"), "%s", c.out);
    cr_assert(strstr(c.out, "\n  worker                                   19"), "%s", c.out);
    cr_assert(strstr(c.out, "\n  cache per 1000 tokens                   512.00 kB\n"), "%s", c.out);
    cr_assert(strstr(c.out, "\n  a sequence of 3000                        1.54 MB\n"), "%s", c.out);
    cr_assert(strstr(c.out, "  only 5 have a part\n"), "%s", c.out);
    captured_free(&c);
}
