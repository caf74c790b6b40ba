/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "base/clock.h"

/* The first numbers of splitmix64 from seed 1234567, as published with the generator (Vigna, splitmix64.c). */
Test(clock, rng_is_splitmix64)
{
    static const uint64_t want[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                    4593380528125082431u, 16408922859458223821u};
    struct dk_rng rng = {1234567};

    for (unsigned i = 0; i < sizeof want / sizeof *want; i++)
        cr_expect_eq(dk_rng_next(&rng), want[i]);
}

Test(clock, rng_unit_is_below_one_and_spread)
{
    struct dk_rng rng = {7};
    unsigned low = 0;
    double sum = 0;

    for (unsigned i = 0; i < 10000; i++) {
        double u = dk_rng_unit(&rng);

        cr_assert(u >= 0 && u < 1);
        low += u < 0.25;
        sum += u;
    }
    cr_expect(low > 2300 && low < 2700, "%u", low);
    cr_expect(sum > 4850 && sum < 5150, "%g", sum);
}

Test(clock, random_ids_differ)
{
    uint64_t a = dk_random_id(), b = dk_random_id();

    cr_expect(a && b && a != b);
}

Test(clock, now_never_goes_back)
{
    uint64_t before = dk_now_us();

    for (int i = 0; i < 1000; i++) {
        uint64_t now = dk_now_us();

        cr_assert(now >= before);
        before = now;
    }
}
