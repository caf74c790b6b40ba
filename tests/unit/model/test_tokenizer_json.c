/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged and unusual tokenizer.json files: each is the small Qwen3 file with one value changed. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "token_cases.h"

#define SMALL FIXTURES "/tokenizers/small_qwen3.tokenizer.json"
#define BYTE  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(pattern, behavior)                                                                      \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern \
    "\"},\"behavior\":\"" behavior "\",\"invert\":false}," BYTE "]}"

#define FIRST_AGAIN                                                                                      \
    "{\"id\":962,\"content\":\"<|endoftext|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false," \
    "\"normalized\":false,"                                                                              \
    "\"special\":true}"
#define FIRST       "\"<|endoftext|>\":{\"id\":\"<|endoftext|>\",\"ids\":[962]}"
#define FIRST_TOKEN "{\"SpecialToken\":{\"id\":\"<|endoftext|>\",\"type_id\":0}}"
#define TEXT        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define TEMPLATE(single, tokens) \
    "{\"type\":\"TemplateProcessing\",\"single\":[" single "],\"special_tokens\":{" tokens "}}"

/* Sets the value at path ("model.merges[3]") to the JSON text, or removes it when the text is NULL. */
static void change(json_t *root, const char *path, const char *value)
{
    json_t *at = root, *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    char copy[100], *part, *rest = copy;

    cr_assert(v || !value, "the test's JSON is wrong: %s", value);
    snprintf(copy, sizeof copy, "%s", path);
    while ((part = strsep(&rest, "."))) {
        char *bracket = strchr(part, '[');
        size_t index = bracket ? strtoul(bracket + 1, NULL, 10) : 0;

        if (bracket) {
            *bracket = 0;
            at = json_object_get(at, part);
        }
        if (rest)
            at = bracket ? json_array_get(at, index) : json_object_get(at, part);
        else if (bracket)
            cr_assert_eq(json_array_set_new(at, index, v), 0);
        else if (v)
            cr_assert_eq(json_object_set_new(at, part, v), 0);
        else
            json_object_del(at, part);
    }
}

static int open_changed(const char *path, const char *value, struct dk_tokenizer **t, struct dk_err *err)
{
    json_t *root = cases_load(SMALL);
    char *text;
    int rc;

    if (path)
        change(root, path, value);
    text = json_dumps(root, 0);
    cr_assert_not_null(text);
    rc = dk_tokenizer_from_memory(text, strlen(text), "t.json", t, err);
    free(text);
    json_decref(root);
    return rc;
}

Test(tokenizer_json, refuses_by_name)
{
    static const struct {
        const char *path, *value, *names;
        int rc;
    } cases[] = {
        {"model", NULL, "model", -EINVAL},
        {"model", "[]", "model", -EINVAL},
        {"model.type", "\"WordPiece\"", "WordPiece", -ENOTSUP},
        {"model.type", "3", "type", -EINVAL},
        {"model.vocab", NULL, "vocab", -EINVAL},
        {"model.vocab", "[]", "vocab", -EINVAL},
        {"model.vocab.!", "\"0\"", "vocab", -EINVAL},
        {"model.vocab.!", "-1", "vocab", -EINVAL},
        {"model.vocab.!", "1.0", "vocab", -EINVAL},
        {"model.vocab.!", "4194304", "vocab", -EINVAL},
        {"model.vocab.!", "1", "the id 1", -EINVAL},
        {"model.merges", NULL, "merges", -EINVAL},
        {"model.merges[3]", "7", "merges[3]", -EINVAL},
        {"model.merges[3]", "[\"a\"]", "merges[3]", -EINVAL},
        {"model.merges[3]", "[\"a\",\"b\",\"c\"]", "merges[3]", -EINVAL},
        {"model.merges[3]", "[\"a\",4]", "merges[3]", -EINVAL},
        {"model.merges[3]", "[\"\",\"a\"]", "merges[3]", -EINVAL},
        {"model.merges[3]", "\"ab\"", "merges[3]", -EINVAL},
        {"model.merges[3]", "\"a b c\"", "merges[3]", -EINVAL},
        {"model.merges[3]", "\"no such\"", "merges[3]", -EINVAL},
        {"model.merges[3]", "[\"z\",\"z\"]", "merges[3]", -EINVAL},
        {"model.dropout", "0.1", "dropout", -ENOTSUP},
        {"model.dropout", "\"no\"", "dropout", -EINVAL},
        {"model.continuing_subword_prefix", "\"##\"", "continuing_subword_prefix", -ENOTSUP},
        {"model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix", -ENOTSUP},
        {"model.fuse_unk", "0", "fuse_unk", -EINVAL},
        {"model.byte_fallback", "\"x\"", "byte_fallback", -EINVAL},
        {"model.ignore_merges", "1", "ignore_merges", -EINVAL},
        {"normalizer", "{\"type\":\"NFKC\"}", "NFKC", -ENOTSUP},
        {"normalizer", "{}", "normalizer", -EINVAL},
        {"normalizer", "7", "normalizer", -EINVAL},
        {"normalizer", "{\"type\":\"Sequence\"}", "normalizers", -EINVAL},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}",
         "normalizers[1]", -ENOTSUP},
        {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[null]}", "normalizers[0]", -EINVAL},
        {"pre_tokenizer", "null", "pre_tokenizer", -EINVAL},
        {"pre_tokenizer", "{\"type\":\"Metaspace\"}", "SentencePiece-style tokenizer (pre_tokenizer Metaspace)",
         -ENOTSUP},
        {"pre_tokenizer", "{\"type\":\"BertPreTokenizer\"}", "BertPreTokenizer", -ENOTSUP},
        {"model.type", "\"Unigram\"", "SentencePiece-style tokenizer (model Unigram)", -ENOTSUP},
        {"normalizer",
         "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},{\"type\":"
         "\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]}",
         "SentencePiece-style tokenizer (a normalizer", -ENOTSUP},
        {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}",
         "only byte-level BPE is read", -ENOTSUP},
        {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"b\"}", "Replace", -ENOTSUP},
        {"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[]}", "ByteLevel", -ENOTSUP},
        {"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE "," BYTE "]}", "pretokenizers[1]",
         -ENOTSUP},
        {"pre_tokenizer", "{\"type\":\"ByteLevel\"}", "add_prefix_space", -EINVAL},
        {"pre_tokenizer", SPLIT("a", "Sometimes"), "Sometimes", -ENOTSUP},
        {"pre_tokenizer", SPLIT("(a", "Isolated"), "pattern", -EINVAL},
        {"pre_tokenizer", SPLIT("a*", "Isolated"), "pattern", -ENOTSUP},
        {"pre_tokenizer", SPLIT("^a", "Isolated"), "\"^a\"", -ENOTSUP},
        {"pre_tokenizer", SPLIT("a$", "Isolated"), "\"$\"", -ENOTSUP},
        {"pre_tokenizer", SPLIT("\\\\w", "Isolated"), "\"\\w\"", -ENOTSUP},
        {"pre_tokenizer", SPLIT("[a[b]]", "Isolated"), "\"[b]\"", -ENOTSUP},
        {"pre_tokenizer", SPLIT("[a-z&&[b]]", "Isolated"), "\"&&[\"", -ENOTSUP},
        {"pre_tokenizer", SPLIT("(?R)a", "Isolated"), "\"(?R\"", -ENOTSUP},
        {"pre_tokenizer", SPLIT("(*ACCEPT)a", "Isolated"), "\"(*A\"", -ENOTSUP},
        {"pre_tokenizer", SPLIT("(?i)a", "Isolated"), "\"(?i\"", -ENOTSUP},
        {"pre_tokenizer", SPLIT("a{1,2}+", "Isolated"), "\"}+\"", -ENOTSUP},
        {"pre_tokenizer", SPLIT("\\u180e", "Isolated"), "U+180E", -ENOTSUP},
        {"pre_tokenizer.pretokenizers[0].invert", "true", "invert", -ENOTSUP},
        {"pre_tokenizer.pretokenizers[0].pattern", "{\"String\":\" \"}", "String", -ENOTSUP},
        {"pre_tokenizer.pretokenizers[0].pattern", "7", "Regex", -EINVAL},
        {"pre_tokenizer.pretokenizers[0].behavior", NULL, "behavior", -EINVAL},
        {"pre_tokenizer.pretokenizers[0].type", NULL, "type", -EINVAL},
        {"pre_tokenizer.pretokenizers[1].use_regex", "3", "use_regex", -EINVAL},
        {"decoder", "null", "decoder", -EINVAL},
        {"decoder.type", "\"Metaspace\"", "Metaspace", -ENOTSUP},
        {"added_tokens", "{}", "added_tokens", -EINVAL},
        {"added_tokens[1]", "7", "added_tokens[1]", -EINVAL},
        {"added_tokens[1].id", NULL, "id", -EINVAL},
        {"added_tokens[1].id", "-5", "id", -EINVAL},
        {"added_tokens[1].id", "962", "962", -EINVAL},
        {"added_tokens[1].id", "3", "id 3", -EINVAL},
        {"added_tokens[1].content", "\"\"", "content", -EINVAL},
        {"added_tokens[1].content", "\"<|endoftext|>\"", "\"<|endoftext|>\" is there twice", -EINVAL},
        {"added_tokens[1]", FIRST_AGAIN, "added_tokens[1]: id 962 or \"<|endoftext|>\" is there twice", -EINVAL},
        {"post_processor", "3", "post_processor is not an object", -EINVAL},
        {"post_processor", "{}", "type", -EINVAL},
        {"post_processor", "{\"type\":\"Sequence\"}", "processors", -EINVAL},
        {"post_processor", "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},null]}", "processors[1]",
         -EINVAL},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"special_tokens\":{}}", "single", -EINVAL},
        {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}", "special_tokens", -EINVAL},
        {"post_processor", TEMPLATE("7", FIRST), "single[0]", -EINVAL},
        {"post_processor", TEMPLATE("{\"SpecialToken\":{\"id\":\"no\"}}", FIRST), "no is missing", -EINVAL},
        {"post_processor", TEMPLATE("{\"SpecialToken\":{\"id\":\"s\"}}", "\"s\":{}"), "ids is missing", -EINVAL},
        {"post_processor", TEMPLATE("{\"SpecialToken\":{\"id\":\"s\"}}", "\"s\":{\"ids\":[988]}"), "988", -EINVAL},
        {"post_processor", TEMPLATE("{\"SpecialToken\":{\"id\":\"s\"}}", "\"s\":{\"ids\":[-1]}"), "-1", -EINVAL},
        {"post_processor", TEMPLATE("{\"SpecialToken\":{\"id\":\"s\"}}", "\"s\":{\"ids\":[1,2,3,4,5,6,7,8,9]}"),
         "up to 8", -EINVAL},
        {"post_processor",
         "{\"type\":\"Sequence\",\"processors\":[" TEMPLATE(FIRST_TOKEN, FIRST) "," TEMPLATE(FIRST_TOKEN, FIRST) "]}",
         "processors[1]: a second TemplateProcessing", -ENOTSUP},
        {"added_tokens[1].content", "\"!\"", "\"!\"", -EINVAL},
        {"added_tokens[1].special", NULL, "special", -EINVAL},
        {"added_tokens[1].normalized", "7", "normalized", -EINVAL},
        {"added_tokens[1].lstrip", "true", "lstrip", -ENOTSUP},
        {"added_tokens[1].rstrip", "true", "rstrip", -ENOTSUP},
        {"added_tokens[1].single_word", "true", "single_word", -ENOTSUP},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_tokenizer *t = NULL;
        struct dk_err err = {0};
        int rc = open_changed(cases[i].path, cases[i].value, &t, &err);

        cr_expect_eq(rc, cases[i].rc, "%s = %s: %d, \"%s\"", cases[i].path, cases[i].value ? cases[i].value : "absent",
                     rc, err.text);
        cr_expect(strstr(err.text, cases[i].names), "%s: \"%s\" does not name %s", cases[i].path, err.text,
                  cases[i].names);
        cr_expect_null(t);
        dk_tokenizer_close(t);
    }
}

Test(tokenizer_json, refuses_what_is_not_json)
{
    static const char *const cases[] = {"", "[]", "{\"a\":", "{\"a\":1,\"a\":2}", "\"x\""};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_tokenizer *t;
        struct dk_err err = {0};

        cr_expect_eq(dk_tokenizer_from_memory(cases[i], strlen(cases[i]), "t.json", &t, &err), -EINVAL, "%s", cases[i]);
        cr_expect(strstr(err.text, "t.json"), "%s", err.text);
    }
}

/* A vocabulary of a few bytes: "a" 0, "b" 1, "ab" 2, "abc" 3, "c" 4. */
#define TINY(options, merges, added, normalizer)                                          \
    "{\"added_tokens\":[" added "],\"normalizer\":" normalizer ",\"pre_tokenizer\":" BYTE \
    ",\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{" options                           \
    "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"abc\":3,\"c\":4},\"merges\":[" merges "]}}"
#define ADDED(id, text, normalized) \
    "{\"id\":" id ",\"content\":\"" text "\",\"special\":false,\"normalized\":" normalized "}"

typedef int encode_fn(const struct dk_tokenizer *t, const char *text, size_t bytes, uint32_t **ids, size_t *count,
                      struct dk_err *err);

static void expect_encoded(const struct dk_tokenizer *t, encode_fn *encode, const char *text, const char *want)
{
    struct dk_err err = {0};
    char got[200] = "";
    uint32_t *ids = NULL;
    size_t count = 0;

    cr_assert_eq(encode(t, text, strlen(text), &ids, &count, &err), 0, "%s", err.text);
    for (size_t i = 0; i < count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%u", i ? " " : "", ids[i]);
    cr_expect_str_eq(got, want, "\"%s\"", text);
    free(ids);
}

static void expect_ids(const char *json, const char *text, const char *want)
{
    struct dk_tokenizer *t = NULL;
    struct dk_err err = {0};

    cr_assert_eq(dk_tokenizer_from_memory(json, strlen(json), "t.json", &t, &err), 0, "%s", err.text);
    expect_encoded(t, dk_tokenizer_encode, text, want);
    dk_tokenizer_close(t);
}

Test(tokenizer_json, options_of_the_model)
{
    expect_ids(TINY("", "\"a b\"", "", "null"), "abcab", "2 4 2");
    expect_ids(TINY("", "[\"a\",\"b\"],[\"ab\",\"c\"]", "", "null"), "abcab", "3 2");
    expect_ids(TINY("", "\"#version: 0.2\",\"a b\"", "", "null"), "ab", "2");
    /* Without the merge ab + c, the word abc is only reached when merges are ignored for whole words. */
    expect_ids(TINY("\"ignore_merges\":true,", "\"a b\"", "", "null"), "abc", "3");
    expect_ids(TINY("\"ignore_merges\":true,", "\"a b\"", "", "null"), "abcc", "2 4 4");
    /* Bytes without a token give none, and their neighbours meet. */
    expect_ids(TINY("", "\"a b\"", "", "null"), "xaxbx", "2");
    expect_ids(TINY("", "\"a b\"", "", "null"), "xyz", "");
}

Test(tokenizer_json, unknown_bytes_and_unknown_tokens)
{
    static const char unk[] = TINY("\"unk_token\":\"a\",", "", "", "null"),
                      fallback[] = TINY("\"byte_fallback\":true,", "", "", "null"),
                      sentencepiece[] = "{\"pre_tokenizer\":null,\"model\":{\"type\":\"BPE\",\"byte_fallback\":true}}";
    struct dk_tokenizer *t;
    struct dk_err err = {0};

    cr_expect_eq(dk_tokenizer_from_memory(unk, sizeof unk - 1, "t", &t, &err), -ENOTSUP);
    cr_expect(strstr(err.text, "unk_token"), "%s", err.text);
    cr_expect_eq(dk_tokenizer_from_memory(fallback, sizeof fallback - 1, "t", &t, &err), -ENOTSUP);
    cr_expect(strstr(err.text, "byte_fallback"), "%s", err.text);
    cr_expect_eq(dk_tokenizer_from_memory(sentencepiece, sizeof sentencepiece - 1, "t", &t, &err), -ENOTSUP);
    cr_expect(strstr(err.text, "SentencePiece-style"), "%s", err.text);
    /* The small Qwen3 vocabulary has every byte, so neither can matter there. */
    cr_expect_eq(open_changed("model.unk_token", "\"!\"", &t, &err), 0, "%s", err.text);
    dk_tokenizer_close(t);
    cr_expect_eq(open_changed("model.byte_fallback", "true", &t, &err), 0, "%s", err.text);
    dk_tokenizer_close(t);
}

Test(tokenizer_json, the_longest_added_token_wins)
{
    static const char json[] = TINY(
        "", "", ADDED("7", "<x", "false") "," ADDED("8", "<x>", "false") "," ADDED("9", "x>a", "false"), "null");

    expect_ids(json, "a<x>a<xa", "0 8 0 7 0");
    expect_ids(json, "x>a<x", "9 7");
    expect_ids(json, "<<x>>", "8");
}

/* U+212B is the Angstrom sign; its NFC is U+00C5. A normalized token is found by its normal form in normalized
 * text, one that is not normalized only as it stands. */
Test(tokenizer_json, added_tokens_and_normal_forms)
{
    static const char json[] = TINY("", "", ADDED("7", "\xE2\x84\xAB", "true") "," ADDED("8", "\xE2\x84\xA6", "false"),
                                    "{\"type\":\"NFC\"}");

    expect_ids(json, "a\xE2\x84\xAB", "0 7");
    expect_ids(json,
               "a\xC3\x85"
               "a",
               "0 7 0");
    expect_ids(json, "A\xCC\x8A", "7");
    expect_ids(json, "\xE2\x84\xA6", "8");
    expect_ids(json, "\xCE\xA9", "");
}

/* Of the first tokens, those that tokenizers 0.22 gives for these files; behind the text it puts further ones. */
Test(tokenizer_json, first_tokens_of_a_prompt)
{
    static const char bytes[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false}",
                      one[] = TEMPLATE(FIRST_TOKEN "," TEXT, FIRST),
                      sequence[] = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE(
                          FIRST_TOKEN "," TEXT, FIRST) "]}",
                      three[] = TEMPLATE("{\"SpecialToken\":{\"id\":\"two\"}}," FIRST_TOKEN "," TEXT "," FIRST_TOKEN,
                                         "\"two\":{\"ids\":[963,964]}," FIRST),
                      behind[] = TEMPLATE(TEXT "," FIRST_TOKEN, FIRST);
    static const struct {
        const char *post, *text, *ids;
    } cases[] = {
        {one, "Hello", "962 444"},
        {one, "", "962"},
        {one, "a<|endoftext|>", "962 64 962"},
        {one, "<|endoftext|>Hello", "962 444"}, /* has it already */
        {sequence, "Hello", "962 444"},
        {three, "Hello", "963 964 962 444"},
        {three, "<|im_start|><|im_end|>Hello", "963 964 962 963 964 444"},
        {three, "<|im_start|><|im_end|><|endoftext|>Hello", "963 964 962 444"},
        {behind, "Hello", "444"},
        {bytes, "Hello", "444"},
        {"null", "Hello", "444"},
        {NULL, "Hello", "444"},
        {"{\"type\":\"RobertaProcessing\",\"sep\":[\"</s>\",2],\"cls\":[\"<s>\",0]}", "Hello", "444"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_tokenizer *t = NULL;
        struct dk_err err = {0};

        cr_assert_eq(open_changed("post_processor", cases[i].post, &t, &err), 0, "%s", err.text);
        expect_encoded(t, dk_tokenizer_encode_prompt, cases[i].text, cases[i].ids);
        expect_encoded(t, dk_tokenizer_encode, "Hello", "444");
        dk_tokenizer_close(t);
    }
}

/* truncation.max_length without a limit, as files of fast tokenizers may have it. */
Test(tokenizer_json, numbers_that_64_bits_do_not_hold)
{
    struct dk_tokenizer *t = NULL;
    struct dk_err err = {0};
    static const char json[] = "{\"truncation\":{\"max_length\":18446744073709551615},\"added_tokens\":[" ADDED(
        "7", "<x>", "false") "],\"pre_tokenizer\":" BYTE ",\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{"
                             "\"a\":0,\"b\":1},\"merges\":[]}}";

    cr_assert_eq(dk_tokenizer_from_memory(json, sizeof json - 1, "t.json", &t, &err), 0, "%s", err.text);
    expect_encoded(t, dk_tokenizer_encode, "b<x>a", "1 7 0");
    dk_tokenizer_close(t);
}
