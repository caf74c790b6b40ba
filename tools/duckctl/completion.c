/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl completion bash: a completion script made from the verbs' own tables. */
#include <stdio.h>
#include <string.h>

#include "duckctl/duckctl.h"

struct only_common {
    struct common_settings common;
};
static const struct only_common defaults = {COMMON_DEFAULTS};
static const struct dk_option options[] = {COMMON_OPTIONS(struct only_common), {0}};

static void print_words(const char *group)
{
    bool group_named = false;

    for (const struct verb *const *v = verbs; *v; v++) {
        if (!group && (*v)->group) {
            if (!group_named)
                printf("%s ", (*v)->group);
            group_named = true;
        } else if (group ? (*v)->group && !strcmp((*v)->group, group) : true) {
            printf("%s ", (*v)->name);
        }
    }
}

/* The words that an option takes, where it takes only some. */
static void print_choices(void)
{
    for (const struct verb *const *v = verbs; *v; v++)
        for (const struct dk_option *o = (*v)->options; o->name; o++) {
            if (!o->choices)
                continue;
            printf("    \"%s%s%s --%s\") COMPREPLY=($(compgen -W \"", (*v)->group ? (*v)->group : "",
                   (*v)->group ? " " : "", (*v)->name, o->name);
            for (const char *p = o->choices; *p; p++)
                putchar(*p == '|' ? ' ' : *p);
            printf("\" -- \"$word\")); return;;\n");
        }
}

static int run(const struct verb *self, int argc, char **argv)
{
    const char *words[1] = {"bash"};
    struct only_common s;
    int count, rc = verb_begin(self, &s, sizeof s, argc, argv, words, 1, &count);

    if (rc >= 0)
        return rc;
    if (strcmp(words[0], "bash"))
        return verb_usage(self, "only bash is known; zsh can use it after `autoload bashcompinit && bashcompinit`");
    printf("# source <(duckctl completion bash)\n_duckctl() {\n"
           "  local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]}\n"
           "  [ \"$verb\" = local ] && verb=\"local ${COMP_WORDS[2]}\"\n"
           "  if [ \"$COMP_CWORD\" = 1 ]; then COMPREPLY=($(compgen -W \"");
    print_words(NULL);
    printf("\" -- \"$word\")); return; fi\n"
           "  if [ \"$COMP_CWORD\" = 2 ] && [ \"${COMP_WORDS[1]}\" = local ]; then COMPREPLY=($(compgen -W \"");
    print_words("local");
    printf("\" -- \"$word\")); return; fi\n  case \"${COMP_WORDS[COMP_CWORD-1]}\" in\n"
           "    --model|--file|--messages|--tools|--logits-out|--trace-out) COMPREPLY=($(compgen -f -- \"$word\")); "
           "return;;\n  esac\n"
           "  case \"$verb ${COMP_WORDS[COMP_CWORD-1]}\" in\n");
    print_choices();
    printf("  esac\n  case \"$verb\" in\n");
    for (const struct verb *const *v = verbs; *v; v++) {
        printf("    \"%s%s%s\") %sCOMPREPLY=($(compgen -W \"", (*v)->group ? (*v)->group : "", (*v)->group ? " " : "",
               (*v)->name,
               /* Its argument is a folder. */
               *v == &verb_inspect ? "[[ $word != -* ]] && COMPREPLY=($(compgen -d -- \"$word\")) || " : "");
        for (const struct dk_option *o = (*v)->options; o->name; o++)
            printf("--%s ", o->name);
        printf("\" -- \"$word\"));;\n");
    }
    printf("  esac\n}\ncomplete -o default -F _duckctl duckctl\n");
    return EXIT_DONE;
}

const struct verb verb_completion = {
    .name = "completion",
    .arguments = "bash",
    .summary = "Print a shell completion script.",
    .options = options,
    .defaults = &defaults,
    .run = run,
    .details = "For this shell: source <(duckctl completion bash)",
};
