/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "captured.h"
#include "duckctl/cluster_dir.h"
#include "duckctl/duckctl.h"
#include "duckctl/namespaces.h"
#include "net/net.h"

static char runtime[32];
static struct cluster_dir dir;
static struct dk_err err;

static void set_up(void)
{
    strcpy(runtime, "/tmp/dkdirXXXXXX");
    cr_assert(mkdtemp(runtime));
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    cr_assert_eq(cluster_dir_name(&dir, "pond", &err), 0);
}

static void tear_down(void)
{
    cluster_dir_remove(&dir);
    rmdir(runtime);
}

TestSuite(cluster_dir, .init = set_up, .fini = tear_down);

static void put_record(const char *text)
{
    char path[100];
    FILE *f;

    mkdir(dir.base, 0700);
    mkdir(dir.path, 0700);
    snprintf(path, sizeof path, "%s/cluster.json", dir.path);
    f = fopen(path, "w");
    cr_assert(f);
    fputs(text, f);
    fclose(f);
}

static bool record_there(void)
{
    char path[100];

    snprintf(path, sizeof path, "%s/cluster.json", dir.path);
    return access(path, F_OK) == 0;
}

/* ---- names */

Test(cluster_dir, names)
{
    static const char *const good[] = {"a", "default", "A-b_9", "-", "12345678901234567890"};
    static const char *const bad[] = {"", "123456789012345678901", "a b", "a/b", "..", ".", "a.b", "\xc3\xa9", "a\n"};
    struct cluster_dir d;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char wanted[100];

        cr_assert_eq(cluster_dir_name(&d, good[i], &err), 0, "%s", good[i]);
        snprintf(wanted, sizeof wanted, "%s/duckllm/%s", runtime, good[i]);
        cr_assert_str_eq(d.path, wanted);
        cr_assert_str_eq(d.name, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(cluster_dir_name(&d, bad[i], &err), USAGE_ERROR, "'%s' is taken", bad[i]);
}

Test(cluster_dir, a_runtime_folder_that_cannot_be_used)
{
    static const char *const others[] = {"", "relative", "/tmp/dk-no-such-folder",
                                         "/proc/1/fd/../../../tmp/../tmp/../tmp"};
    struct cluster_dir d;
    char wanted[100];

    snprintf(wanted, sizeof wanted, "/tmp/duckllm-%u/pond", (unsigned)getuid());
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        setenv("XDG_RUNTIME_DIR", others[i], 1);
        cr_assert_eq(cluster_dir_name(&d, "pond", &err), 0);
        cr_assert_str_eq(d.path, wanted);
    }
    unsetenv("XDG_RUNTIME_DIR");
    cr_assert_eq(cluster_dir_name(&d, "pond", &err), 0);
    cr_assert_str_eq(d.path, wanted);
}

/* The longest folder that is used and the longest name: every socket path in it still fits. */
Test(cluster_dir, longest_paths)
{
    char longest[32] = "/tmp/dkdir-of-31-letters-XXXXXX";
    const size_t spec = sizeof((struct dk_port_spec *)0)->path, unix_path = 108;
    struct cluster_dir d;

    cr_assert_eq(strlen(longest), 31);
    cr_assert(mkdtemp(longest));
    setenv("XDG_RUNTIME_DIR", longest, 1);
    cr_assert_eq(cluster_dir_name(&d, "12345678901234567890", &err), 0);
    cr_assert_eq(strncmp(d.path, longest, 31), 0, "the folder is not used: %s", d.path);
    cr_assert_str_eq(strrchr(d.path, '/'), "/12345678901234567890");
    cr_assert_eq(strlen(d.path), 60);
    cr_assert_lt(strlen(d.path) + strlen("/duck31"), spec);
    cr_assert_lt(strlen(d.path) + strlen("/bell"), spec);
    cr_assert_lt(strlen(d.path) + strlen("/control"), unix_path);
    rmdir(longest);
}

/* ---- records */

static struct cluster_record example(void)
{
    struct cluster_record r = {.process_count = 2, .namespaces = 2};

    strcpy(r.url, "ipc:///x/control");
    namespaces_network(&dir, r.network);
    strcpy(r.processes[0].name, "coordinator");
    r.processes[0].pid = getpid();
    r.processes[0].started = cluster_process_started(getpid());
    strcpy(r.processes[1].name, "worker");
    r.processes[1].pid = 4194304;
    r.processes[1].started = 18446744073709ull;
    return r;
}

Test(cluster_dir, a_record_is_read_back)
{
    struct cluster_record r = example(), back;
    int lock;

    cr_assert_eq(cluster_record_read(&dir, &back, &err), -ENOENT);
    cr_assert(strstr(err.text, "pond") && strstr(err.text, "local up"), "%s", err.text);
    cr_assert_eq(cluster_dir_create(&dir, &lock, &err), 0, "%s", err.text);
    cr_assert_eq(cluster_record_read(&dir, &back, &err), -ENOENT);
    cr_assert_eq(cluster_record_write(&dir, &r, &err), 0);
    cr_assert_eq(cluster_record_write(&dir, &r, &err), 0);
    cr_assert_eq(cluster_record_read(&dir, &back, &err), 0, "%s", err.text);
    cr_assert_str_eq(back.url, r.url);
    cr_assert_str_eq(back.network, r.network);
    cr_assert_eq(back.namespaces, 2);
    cr_assert_eq(back.process_count, 2);
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_str_eq(back.processes[i].name, r.processes[i].name);
        cr_assert_eq(back.processes[i].pid, r.processes[i].pid);
        cr_assert_eq(back.processes[i].started, r.processes[i].started);
    }
    close(lock);
}

#define BEGIN           "{\"coordinator\":\"ipc:///x\",\"namespaces\":0,\"network\":\"\",\"processes\":"
#define ONE(rest)       BEGIN "[{\"name\":\"worker\"," rest "}]}"
#define NET(n, network) "{\"coordinator\":\"ipc:///x\",\"namespaces\":" n ",\"network\":" network ",\"processes\":[]}"

static const char *const damaged[] = {
    "",
    "{",
    "[]",
    "null",
    "{}",
    "garbage \x01\xff",
    BEGIN "[]",
    BEGIN "{}}",
    BEGIN "7}",
    BEGIN "[7]}",
    BEGIN "[{}]}",
    ONE("\"pid\":1"),
    ONE("\"pid\":0,\"started\":5"),
    ONE("\"pid\":-1,\"started\":5"),
    ONE("\"pid\":99999999999,\"started\":5"),
    ONE("\"pid\":1.5,\"started\":5"),
    ONE("\"pid\":\"1\",\"started\":5"),
    ONE("\"pid\":1,\"started\":-5"),
    BEGIN "[{\"name\":\"a-name-that-is-longer-than-any-of-ours\",\"pid\":1,\"started\":5}]}",
    BEGIN "[{\"name\":7,\"pid\":1,\"started\":5}]}",
    NET("-1", "\"dk-pond-01234567\""),
    NET("41", "\"dk-pond-01234567\""),
    NET("\"3\"", "\"dk-pond-01234567\""),
    NET("3", "\"\""),
    NET("3", "\"dk-\""),
    NET("3", "\"eth0\""),
    NET("3", "\"dk-../x\""),
    NET("3", "\"dk-a b\""),
    NET("3", "\"dk-0123456789012345678901234567890123456789\""),
    NET("3", "null"),
};

Test(cluster_dir, damaged_records_are_refused)
{
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        struct cluster_record r;
        int lock;

        put_record(damaged[i]);
        cr_assert_eq(cluster_record_read(&dir, &r, &err), -EINVAL, "taken: %s", damaged[i]);
        cr_assert(strstr(err.text, "damaged") && strstr(err.text, dir.path), "%s", err.text);
        cr_assert_eq(r.process_count, 0);
        cr_assert_eq(r.namespaces, 0);
        cr_assert_eq(cluster_dir_create(&dir, &lock, &err), -EINVAL, "started over: %s", damaged[i]);
        cr_assert(record_there());
    }
}

Test(cluster_dir, verbs_tell_of_a_damaged_record)
{
    struct captured c;

    put_record("{");
    c = captured_duckctl("local", "down", "--name", "pond", NULL);
    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert(strstr(c.err, "damaged"), "%s", c.err);
    captured_free(&c);
    c = captured_duckctl("local", "down", "--all", "--json", NULL);
    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert(strstr(c.out, "damaged"), "%s", c.out);
    captured_free(&c);
    c = captured_duckctl("status", "--name", "pond", NULL);
    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert(strstr(c.err, "damaged"), "%s", c.err);
    captured_free(&c);
    cr_assert(record_there());
}

Test(cluster_dir, an_empty_record_is_ended)
{
    struct captured c;

    put_record(BEGIN "[]}");
    c = captured_duckctl("local", "list", "--json", NULL);
    cr_assert(strstr(c.out, "\"name\":\"pond\"") && strstr(c.out, "\"alive\":0"), "%s", c.out);
    captured_free(&c);
    c = captured_duckctl("local", "down", "--name", "pond", "--json", NULL);
    cr_assert_eq(c.rc, EXIT_DONE);
    cr_assert_str_eq(c.out, "{\"ended\":1,\"killed\":0}\n");
    cr_assert(access(dir.base, F_OK) < 0);
    captured_free(&c);
}

/* ---- who is alive */

Test(cluster_dir, a_reused_pid_is_not_the_process)
{
    struct cluster_process p = {.pid = getpid(), .started = cluster_process_started(getpid())};

    cr_assert_neq(p.started, 0);
    cr_assert(cluster_process_alive(&p));
    p.started++;
    cr_assert(!cluster_process_alive(&p));
    p.started -= 2;
    cr_assert(!cluster_process_alive(&p));
    p.started = 0;
    cr_assert(!cluster_process_alive(&p));
    p = (struct cluster_process){.pid = 4194304, .started = 1}; /* larger than any pid */
    cr_assert(!cluster_process_alive(&p));
    cr_assert_eq(cluster_process_started(4194304), 0);
}

Test(cluster_dir, a_running_cluster_is_not_replaced)
{
    struct cluster_record r = example();
    int lock, second;

    r.namespaces = 0;
    cr_assert_eq(cluster_dir_create(&dir, &lock, &err), 0);
    cr_assert_eq(cluster_dir_create(&dir, &second, &err), -EEXIST, "two at a time");
    cr_assert(strstr(err.text, "being started"), "%s", err.text);
    cr_assert_eq(cluster_record_write(&dir, &r, &err), 0);
    close(lock);
    cr_assert_eq(cluster_dir_create(&dir, &lock, &err), -EEXIST);
    cr_assert(strstr(err.text, "is running (coordinator"), "%s", err.text);
    cr_assert(record_there());

    r.processes[0].started++; /* the pid is another process' now */
    cr_assert_eq(cluster_record_write(&dir, &r, &err), 0);
    cr_assert_eq(cluster_dir_create(&dir, &lock, &err), 0, "%s", err.text);
    cr_assert(!record_there(), "the remains are still there");
    close(lock);
}

Test(cluster_dir, a_folder_that_others_may_enter_is_refused)
{
    int lock;

    mkdir(dir.base, 0755);
    cr_assert_eq(chmod(dir.base, 0755), 0);
    cr_assert_eq(cluster_dir_create(&dir, &lock, &err), -EPERM);
    cr_assert(strstr(err.text, dir.base), "%s", err.text);
    rmdir(dir.base);
    cr_assert_eq(symlink("/tmp", dir.base), 0);
    cr_assert_eq(cluster_dir_create(&dir, &lock, &err), -EPERM);
    unlink(dir.base);
}

/* ---- network namespaces */

Test(cluster_dir, clusters_of_one_name_have_networks_of_their_own)
{
    char one[CLUSTER_NETWORK_BYTES], other[CLUSTER_NETWORK_BYTES], again[CLUSTER_NETWORK_BYTES], ns[64];
    struct cluster_dir d = dir;

    namespaces_network(&dir, one);
    namespaces_network(&dir, again);
    cr_assert_str_eq(one, again);
    cr_assert_eq(strncmp(one, "dk-pond-", 8), 0, "%s", one);
    strcpy(d.path, "/run/user/1000/duckllm/pond");
    namespaces_network(&d, other);
    cr_assert_str_neq(one, other);
    cr_assert_eq(cluster_dir_name(&d, "12345678901234567890", &err), 0);
    namespaces_network(&d, one);
    cr_assert_eq(strlen(one), CLUSTER_NETWORK_BYTES - 1);
    namespace_name(one, 31, ns, sizeof ns);
    cr_assert_leq(strlen(ns), 40, "%s", ns);
    cr_assert(strstr(ns, "-duck30"), "%s", ns);
    namespace_name(one, 0, ns, sizeof ns);
    cr_assert(strstr(ns, "-worker"), "%s", ns);
}
