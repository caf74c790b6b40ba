/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_coordinator.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "wire/wire.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* one call at a time */

static int *seen(struct fake *f, const char *method)
{
    int i = 0;

    while (f->seen[i].method[0] && strcmp(f->seen[i].method, method))
        i++;
    dk_text_copy(f->seen[i].method, sizeof f->seen[i].method, method);
    return &f->seen[i].calls;
}

static void on_call(void *ctx, struct dk_rpc_call *call)
{
    struct fake *f = ctx;
    const char *method = dk_rpc_method(call)->name;

    pthread_mutex_lock(&lock);
    f->on_call(f, call, method, (*seen(f, method))++);
    pthread_mutex_unlock(&lock);
}

void fake_open(struct fake *f,
               void (*handler)(struct fake *f, struct dk_rpc_call *call, const char *method, int number))
{
    static const ProtobufCServiceDescriptor *const services[] = {&dk__client__descriptor, NULL};
    struct dk_err err = {0};

    memset(f, 0, sizeof *f);
    f->on_call = handler;
    snprintf(f->url, sizeof f->url, "ipc:///tmp/dk-fake-%d", (int)getpid());
    cr_assert_eq(dk_rpc_listen(&dk_control_nng, f->url, services, on_call, f, &f->server, &err), 0, "%s", err.text);
}

void fake_keep(struct fake *f, struct dk_rpc_call *call)
{
    cr_assert_lt(f->kept_count, 8);
    f->kept[f->kept_count++] = call;
}

int fake_calls(struct fake *f, const char *method)
{
    int calls;

    pthread_mutex_lock(&lock);
    calls = *seen(f, method);
    pthread_mutex_unlock(&lock);
    return calls;
}

struct dk_rpc_call *fake_take(struct fake *f)
{
    struct dk_rpc_call *call = NULL;

    pthread_mutex_lock(&lock);
    if (f->kept_count) {
        call = f->kept[0];
        f->kept_count--;
        memmove(f->kept, f->kept + 1, (size_t)f->kept_count * sizeof f->kept[0]);
    }
    pthread_mutex_unlock(&lock);
    return call;
}

void fake_close(struct fake *f)
{
    struct dk_rpc_call *call;

    while ((call = fake_take(f)))
        dk_rpc_fail(call, -ECANCELED, "the test is over");
    dk_rpc_server_close(f->server);
    unlink(f->url + strlen("ipc://"));
}
