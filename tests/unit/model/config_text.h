/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TEST_CONFIG_TEXT_H
#define DK_TEST_CONFIG_TEXT_H

#include <stddef.h>

#include "model/config.h"

/* config.json of a release (a folder of fixtures/releases) with one field changed. */
struct config_case {
    const char *base;
    const char *path;  /* "text_config.rope_parameters.rope_theta" */
    const char *value; /* JSON; NULL: the field is taken away */
    int rc;
    const char *words; /* that the error has beside the file and the field, separated by '|' */
};

/* The text of that file; free() it. */
char *config_of(const char *release);
/* A copy of text with one field changed. free() it. */
char *config_changed(const char *text, const char *path, const char *value);
/* Parses, with "config.json" as the name of the file. */
int config_parse(const char *text, struct dk_model_config *c, struct dk_err *err);
/* The release with one field changed; fails the test unless it is accepted. */
struct dk_model_config config_with(const char *release, const char *path, const char *value);
/* The release as it is. */
struct dk_model_config config_released(const char *release);

/* Each case must be refused with its rc and words, or be accepted when its rc is 0. */
void config_cases_run(const struct config_case *cases, size_t count);

#endif
