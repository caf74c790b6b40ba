/* SPDX-License-Identifier: Apache-2.0 */
/* The part of Criterion that the tests use, for builds with ThreadSanitizer, under which Criterion itself cannot start
 * (its sandbox needs addresses that the sanitizer takes; https://github.com/Snaipe/Criterion/issues/274). Each test
 * runs in a forked process, as there. */
#ifndef DK_TSAN_CRITERION_H
#define DK_TSAN_CRITERION_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tsan_suite {
    const char *name;
    struct tsan_settings {
        void (*init)(void);
        void (*fini)(void);
        double timeout;
        bool disabled;
        const char *description;
    } settings;
    struct tsan_suite *next;
};
struct tsan_test {
    const char *suite, *name;
    void (*run)(void);
    struct tsan_settings settings;
    struct tsan_test *next;
};
void tsan_add_suite(struct tsan_suite *s);
void tsan_add_test(struct tsan_test *t);
/* Prints the failure; ends the test when fatal. */
void tsan_failed(bool fatal, const char *file, int line, const char *condition);

#define TestSuite(Suite, ...)                                                                  \
    static struct tsan_suite tsan_suite_##Suite = {.name = #Suite, .settings = {__VA_ARGS__}}; \
    __attribute__((constructor)) static void tsan_add_suite_##Suite(void)                      \
    {                                                                                          \
        tsan_add_suite(&tsan_suite_##Suite);                                                   \
    }                                                                                          \
    struct tsan_suite /* takes the semicolon */

#define Test(Suite, Name, ...)                                                                        \
    static void tsan_run_##Suite##_##Name(void);                                                      \
    static struct tsan_test tsan_test_##Suite##_##Name = {                                            \
        .suite = #Suite, .name = #Name, .run = tsan_run_##Suite##_##Name, .settings = {__VA_ARGS__}}; \
    __attribute__((constructor)) static void tsan_add_##Suite##_##Name(void)                          \
    {                                                                                                 \
        tsan_add_test(&tsan_test_##Suite##_##Name);                                                   \
    }                                                                                                 \
    static void tsan_run_##Suite##_##Name(void)

/* Further arguments are a printf message, shown after the condition. */
#define TSAN_CHECK(Fatal, Condition, Text, ...)           \
    do {                                                  \
        if (!(Condition)) {                               \
            tsan_failed(false, __FILE__, __LINE__, Text); \
            __VA_OPT__(fprintf(stderr, __VA_ARGS__);)     \
            if (Fatal)                                    \
                tsan_failed(true, NULL, 0, NULL);         \
        }                                                 \
    } while (0)

#define TSAN_COMPARE(Fatal, A, Op, B, ...) TSAN_CHECK(Fatal, (A)Op(B), #A " " #Op " " #B, __VA_ARGS__)
#define TSAN_FLOAT(Fatal, A, B, E, ...) \
    TSAN_CHECK(Fatal, fabs((double)(A) - (double)(B)) <= (E), #A " ~ " #B, __VA_ARGS__)
#define TSAN_STR(Fatal, A, Op, B, ...) TSAN_CHECK(Fatal, strcmp(A, B) Op 0, #A " " #Op " " #B, __VA_ARGS__)
#define TSAN_ARR(Fatal, A, B, N, ...)  TSAN_CHECK(Fatal, memcmp(A, B, N) == 0, #A " == " #B, __VA_ARGS__)

#define cr_assert(C, ...)                TSAN_CHECK(true, C, #C, __VA_ARGS__)
#define cr_assert_not(C, ...)            TSAN_CHECK(true, !(C), "not " #C, __VA_ARGS__)
#define cr_assert_null(C, ...)           TSAN_CHECK(true, (C) == NULL, #C " is NULL", __VA_ARGS__)
#define cr_assert_not_null(C, ...)       TSAN_CHECK(true, (C) != NULL, #C " is not NULL", __VA_ARGS__)
#define cr_assert_fail(...)              TSAN_CHECK(true, false, "reached", __VA_ARGS__)
#define cr_assert_eq(A, B, ...)          TSAN_COMPARE(true, A, ==, B, __VA_ARGS__)
#define cr_assert_neq(A, B, ...)         TSAN_COMPARE(true, A, !=, B, __VA_ARGS__)
#define cr_assert_lt(A, B, ...)          TSAN_COMPARE(true, A, <, B, __VA_ARGS__)
#define cr_assert_leq(A, B, ...)         TSAN_COMPARE(true, A, <=, B, __VA_ARGS__)
#define cr_assert_gt(A, B, ...)          TSAN_COMPARE(true, A, >, B, __VA_ARGS__)
#define cr_assert_geq(A, B, ...)         TSAN_COMPARE(true, A, >=, B, __VA_ARGS__)
#define cr_assert_float_eq(A, B, E, ...) TSAN_FLOAT(true, A, B, E, __VA_ARGS__)
#define cr_assert_str_eq(A, B, ...)      TSAN_STR(true, A, ==, B, __VA_ARGS__)
#define cr_assert_str_neq(A, B, ...)     TSAN_STR(true, A, !=, B, __VA_ARGS__)
#define cr_assert_arr_eq(A, B, N, ...)   TSAN_ARR(true, A, B, N, __VA_ARGS__)
#define cr_expect(C, ...)                TSAN_CHECK(false, C, #C, __VA_ARGS__)
#define cr_expect_not(C, ...)            TSAN_CHECK(false, !(C), "not " #C, __VA_ARGS__)
#define cr_expect_null(C, ...)           TSAN_CHECK(false, (C) == NULL, #C " is NULL", __VA_ARGS__)
#define cr_expect_not_null(C, ...)       TSAN_CHECK(false, (C) != NULL, #C " is not NULL", __VA_ARGS__)
#define cr_expect_eq(A, B, ...)          TSAN_COMPARE(false, A, ==, B, __VA_ARGS__)
#define cr_expect_neq(A, B, ...)         TSAN_COMPARE(false, A, !=, B, __VA_ARGS__)
#define cr_expect_lt(A, B, ...)          TSAN_COMPARE(false, A, <, B, __VA_ARGS__)
#define cr_expect_leq(A, B, ...)         TSAN_COMPARE(false, A, <=, B, __VA_ARGS__)
#define cr_expect_gt(A, B, ...)          TSAN_COMPARE(false, A, >, B, __VA_ARGS__)
#define cr_expect_geq(A, B, ...)         TSAN_COMPARE(false, A, >=, B, __VA_ARGS__)
#define cr_expect_float_eq(A, B, E, ...) TSAN_FLOAT(false, A, B, E, __VA_ARGS__)
#define cr_expect_str_eq(A, B, ...)      TSAN_STR(false, A, ==, B, __VA_ARGS__)
#define cr_expect_str_empty(A, ...)      TSAN_STR(false, A, ==, "", __VA_ARGS__)
#define cr_expect_arr_eq(A, B, N, ...)   TSAN_ARR(false, A, B, N, __VA_ARGS__)
/* Ends the test, which counts as passing. */
#define cr_skip(...)                  \
    do {                              \
        fprintf(stderr, "[SKIP] ");   \
        fprintf(stderr, __VA_ARGS__); \
        fputc('\n', stderr);          \
        exit(0);                      \
    } while (0)
#define cr_log_info(...)              \
    do {                              \
        fprintf(stderr, __VA_ARGS__); \
        fputc('\n', stderr);          \
    } while (0)

#endif
