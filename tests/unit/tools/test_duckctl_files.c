/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of token ids, and the files for logits and traces. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "captured.h"
#include "duckctl/duckctl.h"
#include "duckctl/id_list.h"
#include "duckctl/logits_file.h"
#include "duckctl/trace_file.h"

static struct dk_err err;

Test(id_list, good_ones)
{
    static const struct {
        const char *text;
        size_t count;
        uint32_t last;
    } cases[] = {{"0", 1, 0}, {"1,2,3", 3, 3}, {"4294967295", 1, UINT32_MAX}, {"007", 1, 7}, {"1,1,1,1,1,1,1", 7, 1}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t *ids;
        size_t count;

        cr_assert_eq(id_list_parse(cases[i].text, "--ids", &ids, &count, &err), 0, "%s", cases[i].text);
        cr_assert_eq(count, cases[i].count);
        cr_assert_eq(ids[count - 1], cases[i].last);
        free(ids);
    }
}

Test(id_list, bad_ones)
{
    static const char *const bad[] = {
        "",   ",",   "1,",   "1,,2",       ",1",  "1 2",  "1, 2", "-1",
        "+1", "1.0", "0x10", "4294967296", "one", "1,2x", "1\n",  "99999999999999999999999999999999999999"};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t *ids;
        size_t count;

        cr_assert_eq(id_list_parse(bad[i], "--ids", &ids, &count, &err), USAGE_ERROR, "taken: '%s'", bad[i]);
        cr_assert_null(ids);
        cr_assert(strstr(err.text, "--ids"), "%s", err.text);
    }
}

Test(trace_layers, good_ones)
{
    static const struct {
        const char *text;
        size_t count;
        uint32_t layers[5];
    } cases[] = {{"0", 1, {0}},   {"511", 1, {511}}, {"0,3-5", 4, {0, 3, 4, 5}}, {"5,4-5,1,5", 3, {1, 4, 5}},
                 {"7-7", 1, {7}}, {"010", 1, {10}}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t *layers;
        size_t count;

        cr_assert_eq(trace_layers_parse(cases[i].text, &layers, &count, &err), 0, "%s", err.text);
        cr_assert_eq(count, cases[i].count, "%s: %zu", cases[i].text, count);
        cr_assert_arr_eq(layers, cases[i].layers, count * sizeof *layers);
        free(layers);
    }
}

Test(trace_layers, bad_ones)
{
    static const char *const bad[] = {"",  ",",   "1,",  "1,,2", "-1",  "1-",         "3-1", "1-2-3", "512", "0-512",
                                      "x", "1 2", "0x1", "1.5",  "1;2", "4294967296", "1-x", "5120",  "+1",  "1\n"};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint32_t *layers;
        size_t count;

        cr_assert_eq(trace_layers_parse(bad[i], &layers, &count, &err), USAGE_ERROR, "taken: '%s'", bad[i]);
        cr_assert(!layers && !count);
        cr_assert(strstr(err.text, "--trace-layers"), "%s", err.text);
    }
    trace_layers_parse("1,9-7,2", &(uint32_t *){NULL}, &(size_t){0}, &err);
    cr_assert(strstr(err.text, "'9-7,2'"), "%s", err.text);
}

/* ---- logits */

static char folder[32], path[64];
static struct logits_file file;

static void set_up(void)
{
    strcpy(folder, "/tmp/dklogXXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/logits.safetensors", folder);
}

static void tear_down(void)
{
    unlink(path);
    cr_expect_eq(rmdir(folder), 0, "something is left in it");
}

static void write_old(void)
{
    FILE *f = fopen(path, "wb");

    cr_assert(f && fputs("older", f) >= 0 && fclose(f) == 0);
}

static void assert_old(void)
{
    char text[8] = "";
    FILE *f = fopen(path, "rb");

    cr_assert(f && fread(text, 1, 7, f) == 5);
    fclose(f);
    cr_assert_str_eq(text, "older");
}

TestSuite(logits_file, .init = set_up, .fini = tear_down);

static int append(const float *values, size_t count, uint32_t vocab)
{
    return logits_file_append(&file, (const uint8_t *)values, count * sizeof *values, vocab, &err);
}

static const float values[6] = {1.5f, -2, 3, 1e-30f, 5, 6};

Test(logits_file, is_a_safetensors_file)
{
    uint8_t raw[4096];
    uint64_t length;
    size_t bytes;
    json_t *header, *wanted;
    FILE *f;

    cr_assert_eq(logits_file_open(&file, path, 2, &err), 0);
    cr_assert_eq(append(values, 3, 3), 0);
    cr_assert_eq(append(values + 3, 3, 3), 0);
    cr_assert_eq(logits_file_finish(&file, true, &err), 0);
    f = fopen(path, "rb");
    cr_assert(f);
    bytes = fread(raw, 1, sizeof raw, f);
    fclose(f);
    memcpy(&length, raw, sizeof length);
    cr_assert_eq(length % 8, 0);
    cr_assert_eq(bytes, 8 + length + sizeof values);
    cr_assert_eq(memcmp(raw + 8 + length, values, sizeof values), 0);
    header = json_loadb((const char *)raw + 8, length, 0, NULL);
    cr_assert(header);
    wanted = json_pack("{s:s,s:[i,i],s:[i,i]}", "dtype", "F32", "shape", 2, 3, "data_offsets", 0, 24);
    cr_assert(json_equal(json_object_get(header, "logits"), wanted));
    json_decref(wanted);
    json_decref(header);
    cr_assert_eq(logits_file_finish(&file, true, &err), 0, "a second end does nothing");
}

Test(logits_file, one_that_lacks_rows_is_removed)
{
    cr_assert_eq(logits_file_open(&file, path, 3, &err), 0);
    cr_assert_eq(append(values, 6, 3), 0);
    cr_assert_eq(logits_file_finish(&file, true, &err), -EIO);
    cr_assert(strstr(err.text, "2 of 3 rows"), "%s", err.text);
    cr_assert(access(path, F_OK) < 0);
}

Test(logits_file, an_older_file_stays_until_a_whole_one_is_there)
{
    char link[80];

    write_old();
    snprintf(link, sizeof link, "%s.link", path);
    cr_assert_eq(symlink(path, link), 0);
    for (int complete = 0; complete < 2; complete++) {
        cr_assert_eq(logits_file_open(&file, link, 2, &err), 0, "%s", err.text);
        cr_assert_eq(append(values, 6, 3), 0);
        assert_old();
        cr_assert_eq(logits_file_finish(&file, complete, &err), 0);
        if (!complete)
            assert_old();
    }
    cr_assert_eq(logits_file_open(&file, path, 3, &err), 0);
    cr_assert_eq(logits_file_finish(&file, true, &err), -EIO);
    cr_assert_eq(readlink(link, (char[80]){0}, 80), (ssize_t)strlen(path), "the link is none any more");
    unlink(link);
    cr_assert_eq(truncate(path, 5), 0);
    cr_assert_eq(access(path, F_OK), 0, "the whole one stays");
}

Test(logits_file, the_same_file_by_two_names)
{
    struct output_file a, b;
    char link[80], other[80];

    write_old();
    snprintf(link, sizeof link, "%s.link", path);
    snprintf(other, sizeof other, "%s/./logits.safetensors", folder);
    cr_assert_eq(symlink(path, link), 0);
    cr_assert_eq(output_file_open(&a, "--a", path, &err), 0);
    cr_assert_eq(output_file_open(&b, "--b", link, &err), 0);
    cr_assert(output_file_same(&a, &b));
    output_file_finish(&b, false, &err);
    output_file_finish(&a, false, &err);
    unlink(link);
    unlink(path); /* not there yet, too */
    cr_assert_eq(output_file_open(&a, "--a", path, &err), 0);
    cr_assert_eq(output_file_open(&b, "--b", other, &err), 0);
    cr_assert(output_file_same(&a, &b));
    output_file_finish(&b, false, &err);
    output_file_finish(&a, false, &err);
    cr_assert_eq(output_file_open(&a, "--a", "/dev/null", &err), 0);
    cr_assert_eq(output_file_open(&b, "--b", "/dev/null", &err), 0);
    cr_assert_not(output_file_same(&a, &b), "a device may be both");
    output_file_finish(&b, true, &err);
    output_file_finish(&a, true, &err);
}

static mode_t mode_of(const char *name)
{
    struct stat st;

    cr_assert_eq(stat(name, &st), 0);
    return st.st_mode & 07777;
}

static void write_whole(const char *name)
{
    cr_assert_eq(logits_file_open(&file, name, 2, &err), 0, "%s", err.text);
    cr_assert_eq(append(values, 6, 3), 0);
    cr_assert_eq(logits_file_finish(&file, true, &err), 0, "%s", err.text);
}

Test(logits_file, the_rights_of_an_older_file_stay)
{
    static const mode_t modes[] = {0600, 0640, 0666, 0755};

    write_old();
    umask(027);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        cr_assert_eq(chmod(path, modes[i]), 0);
        write_whole(path);
        cr_assert_eq(mode_of(path), modes[i], "%o became %o", modes[i], mode_of(path));
    }
    unlink(path);
    write_whole(path);
    cr_assert_eq(mode_of(path), 0640, "a new one is as the umask says");
    umask(0);
    unlink(path);
    write_whole(path);
    cr_assert_eq(mode_of(path), 0666);
    cr_assert_eq(umask(022), 0, "the umask is another one now");
}

Test(logits_file, the_owner_of_an_older_file_stays)
{
    struct stat st;

    if (geteuid() != 0)
        return; /* only root can make such a file */
    write_old();
    cr_assert_eq(chown(path, 12345, 23456), 0);
    cr_assert_eq(chmod(path, 0640), 0);
    write_whole(path);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_uid, 12345u);
    cr_assert_eq(st.st_gid, 23456u);
    cr_assert_eq(mode_of(path), 0640);
}

Test(logits_file, no_other_file_is_touched)
{
    static const char *const others[] = {".tmp", ".XXXXXX"};
    char name[80], text[8] = "";

    for (size_t i = 0; i < 2; i++) {
        FILE *f;

        snprintf(name, sizeof name, "%s%s", path, others[i]);
        f = fopen(name, "wb");
        cr_assert(f && fputs("mine", f) >= 0 && fclose(f) == 0);
        write_whole(path);
        f = fopen(name, "rb");
        cr_assert(f && fread(text, 1, 7, f) == 4);
        fclose(f);
        cr_assert_str_eq(text, "mine");
        unlink(name);
    }
}

Test(logits_file, two_runs_with_the_same_file)
{
    struct output_file a, b;
    char text[8] = "";
    FILE *f;

    cr_assert_eq(output_file_open(&a, "--a", path, &err), 0);
    cr_assert_eq(output_file_open(&b, "--b", path, &err), 0);
    cr_assert(fputs("a", a.file) >= 0 && fputs("bb", b.file) >= 0);
    cr_assert_eq(output_file_finish(&b, true, &err), 0);
    cr_assert_eq(output_file_finish(&a, false, &err), 0);
    f = fopen(path, "rb");
    cr_assert(f && fread(text, 1, 7, f) == 2);
    fclose(f);
    cr_assert_str_eq(text, "bb");
}

Test(logits_file, links_whose_target_is_missing)
{
    char link[80], chain[80], other[80], to[80] = "";

    snprintf(link, sizeof link, "%s.link", path);
    snprintf(chain, sizeof chain, "%s.chain", path);
    snprintf(other, sizeof other, "%s/no/such", folder);
    cr_assert_eq(symlink("logits.safetensors", link), 0); /* from the folder of the link */
    cr_assert_eq(symlink(link, chain), 0);
    write_whole(chain);
    cr_assert_gt(readlink(link, to, sizeof to), 0, "the link is none any more");
    cr_assert_str_eq(to, "logits.safetensors");
    cr_assert_gt(readlink(chain, to, sizeof to), 0, "the link is none any more");
    cr_assert_eq(access(path, F_OK), 0);
    unlink(chain);
    unlink(link);
    cr_assert_eq(symlink(other, link), 0);
    cr_assert_eq(logits_file_open(&file, link, 1, &err), -ENOENT);
    unlink(link);
    cr_assert_eq(symlink(link, link), 0);
    cr_assert_eq(logits_file_open(&file, link, 1, &err), -ELOOP);
    unlink(link);
}

Test(logits_file, names_as_long_as_they_may_be)
{
    char name[400], long_one[256];

    memset(long_one, 'n', 255);
    long_one[255] = 0;
    snprintf(name, sizeof name, "%s/%s", folder, long_one);
    write_whole(name);
    cr_assert_eq(unlink(name), 0);
    snprintf(name, sizeof name, "%s/%sn", folder, long_one);
    cr_assert_eq(logits_file_open(&file, name, 1, &err), -ENAMETOOLONG);
    cr_assert_eq(logits_file_open(&file, "", 1, &err), -ENOENT);
    snprintf(name, sizeof name, "%s/new/", folder);
    cr_assert_eq(logits_file_open(&file, name, 1, &err), -ENOENT);
    cr_assert_eq(chdir(folder), 0);
    write_whole("logits.safetensors");
    cr_assert_eq(access(path, F_OK), 0);
    cr_assert_eq(chdir("/"), 0);
}

/* A stream that takes nothing and does not say why. */
static ssize_t take_nothing(void *ctx, const char *data, size_t bytes)
{
    (void)ctx, (void)data, (void)bytes;
    errno = 0;
    return 0;
}

Test(logits_file, a_short_write_fails_whatever_errno_says)
{
    cr_assert_eq(logits_file_open(&file, path, 2, &err), 0);
    fclose(file.out.file);
    file.out.file = fopencookie(NULL, "wb", (cookie_io_functions_t){.write = take_nothing});
    cr_assert(file.out.file);
    setvbuf(file.out.file, NULL, _IONBF, 0);
    errno = 0;
    cr_assert_eq(append(values, 6, 3), -EIO);
    cr_assert(strstr(err.text, path), "%s", err.text);
    cr_assert_eq(logits_file_finish(&file, false, &err), 0);
    cr_assert(access(path, F_OK) < 0);
}

Test(logits_file, rows_that_do_not_fit_are_refused)
{
    cr_assert_eq(logits_file_open(&file, path, 2, &err), 0);
    cr_assert_eq(append(values, 3, 0), -EBADMSG);
    cr_assert_eq(append(values, 4, 3), -EBADMSG);
    cr_assert_eq(append(values, 3, 3), 0);
    cr_assert_eq(append(values, 2, 2), -EBADMSG);
    cr_assert_eq(logits_file_append(&file, (const uint8_t *)values, 11, 3, &err), -EBADMSG);
    cr_assert_eq(append(values, 3, 3), 0);
    cr_assert_eq(logits_file_finish(&file, true, &err), 0);
}

Test(logits_file, places_that_cannot_be_written)
{
    cr_assert_lt(logits_file_open(&file, "/no/such/folder/x", 1, &err), 0);
    cr_assert(strstr(err.text, "--logits-out /no/such/folder/x"), "%s", err.text);
    cr_assert_eq(logits_file_finish(&file, true, &err), 0);
    cr_assert_eq(logits_file_open(&file, folder, 1, &err), -EISDIR);
    cr_assert_eq(symlink("/dev/full", path), 0);
    cr_assert_eq(logits_file_open(&file, path, 1, &err), 0);
    cr_assert_eq(append(values, 3, 3), 0);
    cr_assert_eq(logits_file_finish(&file, true, &err), -ENOSPC);
    cr_assert_eq(access(path, F_OK), 0, "a device was removed");
}

/* ---- traces */

TestSuite(trace_file, .init = set_up, .fini = tear_down);

static struct trace_file trace;
static const uint32_t ids[3] = {7, 8, 9};

static int add(const char *name, Dk__TraceType type, uint32_t rows, uint32_t cols, const void *data, size_t bytes)
{
    Dk__TraceTensor t = DK__TRACE_TENSOR__INIT;
    uint32_t shape[2] = {rows, cols};

    t.name = (char *)(uintptr_t)name;
    t.type = type;
    t.shape = shape;
    t.n_shape = 2;
    t.data = (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)data, .len = bytes};
    return trace_file_add(&trace, &t, &err);
}

static void assert_tensor(const uint8_t *raw, uint64_t length, const char *name, const char *type, const void *data,
                          size_t bytes)
{
    json_t *header = json_loadb((const char *)raw + 8, length, 0, NULL), *t = json_object_get(header, name), *o;

    cr_assert(t, "no %s in %.*s", name, (int)length, (const char *)raw + 8);
    o = json_object_get(t, "data_offsets");
    cr_assert_str_eq(json_string_value(json_object_get(t, "dtype")), type);
    cr_assert_eq(json_integer_value(json_array_get(o, 1)) - json_integer_value(json_array_get(o, 0)), (long long)bytes);
    cr_assert_eq(memcmp(raw + 8 + length + json_integer_value(json_array_get(o, 0)), data, bytes), 0, "%s", name);
    json_decref(header);
}

Test(trace_file, is_a_safetensors_file)
{
    static const int32_t experts[4] = {3, 1, -1, 2};
    uint8_t raw[4096];
    uint64_t length;
    size_t bytes;
    FILE *f;

    cr_assert_eq(trace_file_open(&trace, path, ids, 3, &err), 0);
    cr_assert_eq(add("layer.0.moe.in", DK__TRACE_TYPE__TRACE_F32, 2, 3, values, sizeof values), 0);
    cr_assert_eq(add("layer.0.moe.expert_ids", DK__TRACE_TYPE__TRACE_I32, 2, 2, experts, sizeof experts), 0);
    cr_assert_eq(trace_file_finish(&trace, true, &err), 0);
    f = fopen(path, "rb");
    cr_assert(f);
    bytes = fread(raw, 1, sizeof raw, f);
    fclose(f);
    memcpy(&length, raw, sizeof length);
    cr_assert_eq(length % 8, 0);
    cr_assert_eq(bytes, 8 + length + sizeof ids + sizeof values + sizeof experts);
    assert_tensor(raw, length, "ids", "I32", ids, sizeof ids);
    assert_tensor(raw, length, "layer.0.moe.in", "F32", values, sizeof values);
    assert_tensor(raw, length, "layer.0.moe.expert_ids", "I32", experts, sizeof experts);
    cr_assert_eq(trace_file_finish(&trace, true, &err), 0, "a second end does nothing");
}

Test(trace_file, one_that_is_not_complete_is_removed)
{
    cr_assert_eq(trace_file_open(&trace, path, ids, 3, &err), 0);
    cr_assert_eq(trace_file_finish(&trace, true, &err), -EIO, "no tensor but the ids");
    cr_assert(access(path, F_OK) < 0);
    cr_assert_eq(trace_file_open(&trace, path, ids, 3, &err), 0);
    cr_assert_eq(add("embed", DK__TRACE_TYPE__TRACE_F32, 2, 3, values, sizeof values), 0);
    cr_assert_eq(trace_file_finish(&trace, false, NULL), 0);
    cr_assert(access(path, F_OK) < 0);
}

Test(trace_file, tensors_that_do_not_fit_are_refused)
{
    cr_assert_eq(trace_file_open(&trace, path, ids, 3, &err), 0);
    cr_assert_eq(add("embed", DK__TRACE_TYPE__TRACE_F32, 2, 2, values, sizeof values), -EBADMSG);
    cr_assert_eq(add("embed", DK__TRACE_TYPE__TRACE_F32, 0x80000000u, 0x80000000u, values, 0), -EBADMSG);
    cr_assert_eq(add("embed", DK__TRACE_TYPE__TRACE_F32, 2, 3, values, sizeof values), 0);
    cr_assert_eq(add("embed", DK__TRACE_TYPE__TRACE_F32, 2, 3, values, sizeof values), -EBADMSG);
    cr_assert(strstr(err.text, "came twice"), "%s", err.text);
    cr_assert_eq(trace_file_finish(&trace, true, &err), 0);
}

Test(trace_file, places_that_cannot_be_written)
{
    cr_assert_lt(trace_file_open(&trace, "/no/such/folder/x", ids, 3, &err), 0);
    cr_assert(strstr(err.text, "--trace-out /no/such/folder/x"), "%s", err.text);
    cr_assert_eq(trace_file_finish(&trace, false, &err), 0);
    cr_assert_eq(symlink("/dev/full", path), 0);
    cr_assert_eq(trace_file_open(&trace, path, ids, 3, &err), 0);
    cr_assert_eq(add("embed", DK__TRACE_TYPE__TRACE_F32, 2, 3, values, sizeof values), 0);
    cr_assert_eq(trace_file_finish(&trace, true, &err), -ENOSPC);
    cr_assert_eq(access(path, F_OK), 0, "a device was removed");
}
