/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "dpdk_internal.h"

/* Pure polling costs milliseconds as soon as there are more busy processes than cores. So an idle loop yields for
 * SPIN_US, in which a peer on the same core can answer, and then sleeps until its bell rings. When one yield keeps
 * the core away for longer than YIELD_LATE_US the machine is crowded, and spinning only delays the others: the next
 * NO_SPIN_WAITS waits sleep at once.
 *
 * Ports with bells sleep on a futex, af_packet ports in poll() on the driver's socket. A process that has both, or
 * links that give it two words to sleep on, cannot sleep on all at once: it takes naps of NAP_US.
 *
 * Nearly all sleeps end by a bell, long before their deadline, but the deadline is often only a millisecond off (a
 * retransmission). Setting the hardware's timer for it and back again cost 12 us of a 22 us round trip in a virtual
 * machine. With PARK_SLACK_NS of slack the kernel mostly leaves the deadline to its next tick, and repeats come up to
 * a millisecond later. */

enum {
    SPIN_US = 50,
    YIELD_LATE_US = 150,
    NO_SPIN_WAITS = 200,
    PARK_MOST_US = 100000,
    NAP_US = 100,
    PARK_SLACK_NS = 1000000,
    NAP_SLACK_NS = 1000,
};

int dk_park_open(struct dk_net *net)
{
    int rc = pthread_mutex_init(&net->wake_lock, NULL);

    if (rc)
        return -rc;
    net->own_word = &net->private_word;
    net->park_most_us = PARK_MOST_US;
    net->timer_slack_ns = prctl(PR_GET_TIMERSLACK);
    net->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (net->wake_fd < 0) {
        rc = -errno;
        pthread_mutex_destroy(&net->wake_lock);
        return rc;
    }
    return 0;
}

void dk_park_close(struct dk_net *net)
{
    if (net->timer_slack_ns > 0)
        (void)prctl(PR_SET_TIMERSLACK, (unsigned long)net->timer_slack_ns);
    close(net->wake_fd);
    pthread_mutex_destroy(&net->wake_lock);
}

void dk_park_ports_changed(struct dk_net *net)
{
    _Atomic uint32_t *word = NULL;
    uint32_t polled = 0, bells = 0, deaf = 0;

    for (uint32_t i = 0; i < net->ports_max; i++) {
        const struct dk_port *p = &net->ports[i];

        if (!p->used)
            continue;
        if (p->poll_fd >= 0)
            polled++;
        else if (!p->own_word || (word && word != p->own_word))
            deaf++;
        else {
            word = p->own_word;
            bells++;
        }
    }
    pthread_mutex_lock(&net->wake_lock);
    net->own_word = word ? word : &net->private_word;
    net->poll_count = polled;
    net->park_most_us = deaf > 0 || (polled > 0 && bells > 0) ? NAP_US : PARK_MOST_US;
    pthread_mutex_unlock(&net->wake_lock);
    (void)prctl(PR_SET_TIMERSLACK, net->park_most_us == NAP_US ? (unsigned long)NAP_SLACK_NS : PARK_SLACK_NS);
}

/* Sleeps in poll(). Returns whether something woke it. */
static bool park_poll(struct dk_net *net, uint64_t timeout_us)
{
    const struct timespec timeout = {(time_t)(timeout_us / 1000000), (long)(timeout_us % 1000000) * 1000};
    struct pollfd fds[1 + RTE_MAX_ETHPORTS];
    nfds_t count = 0;
    uint64_t tokens;
    int ready;

    fds[count++] = (struct pollfd){.fd = net->wake_fd, .events = POLLIN};
    for (uint32_t i = 0; i < net->ports_max; i++)
        if (net->ports[i].used && net->ports[i].poll_fd >= 0)
            fds[count++] = (struct pollfd){.fd = net->ports[i].poll_fd, .events = POLLIN};
    ready = ppoll(fds, count, &timeout, NULL);
    if (ready <= 0)
        return false;
    if (fds[0].revents)
        (void)!read(net->wake_fd, &tokens, sizeof tokens);
    for (nfds_t i = 1; i < count; i++) {
        int error;
        socklen_t bytes = sizeof error;

        /* An interface that went down leaves an error that would end every later poll at once: take it away. */
        if (fds[i].revents & POLLERR)
            (void)getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    return true;
}

static void park(struct dk_net *net, uint64_t deadline_us)
{
    uint64_t now_us = dk_now_us(), timeout_us;
    bool rung;

    if (deadline_us <= now_us)
        return;
    timeout_us = deadline_us - now_us;
    if (timeout_us > net->park_most_us)
        timeout_us = net->park_most_us;
    if (net->poll_count > 0) {
        net->counters.parks++;
        rung = park_poll(net, timeout_us);
    } else {
        dk_bell_arm(net->own_word);
        if (atomic_load(&net->woken) || dk_dpdk_look(net) > 0) {
            dk_bell_disarm(net->own_word);
            atomic_store(&net->woken, false);
            return;
        }
        net->counters.parks++;
        rung = dk_bell_sleep(net->own_word, timeout_us);
    }
    if (rung)
        net->counters.wakeups++;
    atomic_store(&net->woken, false);
}

void dk_park_wait(struct dk_net *net, bool worked, uint64_t now_us, uint64_t deadline_us)
{
    if (worked)
        net->idle_since_us = 0;
    /* exchange is dear, and nobody calls wake() in most rounds */
    if (atomic_load_explicit(&net->woken, memory_order_relaxed) && atomic_exchange(&net->woken, false))
        return;
    if (worked || net->config.busy_poll || net->stash_count > 0 || deadline_us <= now_us)
        return;
    if (!net->idle_since_us)
        net->idle_since_us = now_us;
    if (net->no_spin > 0) {
        net->no_spin--;
    } else if (now_us - net->idle_since_us < SPIN_US) {
        uint64_t before_us = dk_now_us();

        sched_yield();
        if (dk_now_us() - before_us > YIELD_LATE_US)
            net->no_spin = NO_SPIN_WAITS;
        return;
    }
    park(net, deadline_us);
}

void dk_park_wake(struct dk_net *net)
{
    const uint64_t token = 1;

    pthread_mutex_lock(&net->wake_lock);
    atomic_store(&net->woken, true);
    dk_bell_ring(net->own_word);
    if (net->poll_count > 0)
        (void)!write(net->wake_fd, &token, sizeof token);
    pthread_mutex_unlock(&net->wake_lock);
}
