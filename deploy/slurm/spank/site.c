/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later */
#include "site.h"

#include <string.h>

/* The text behind "name=" in an argument; NULL for another argument. */
static const char *value_of(const char *argument, const char *name)
{
    size_t length = strlen(name);

    return strncmp(argument, name, length) == 0 && argument[length] == '=' ? argument + length + 1 : NULL;
}

static int read_level(const char *value, enum tidegauge_level *level)
{
    enum tidegauge_level found = tidegauge_level_of(value);

    if (found != TIDEGAUGE_NO_LEVEL)
        *level = found;
    return found != TIDEGAUGE_NO_LEVEL;
}

static int read_yes_or_no(const char *value, int *is_yes)
{
    if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
        return 0;
    *is_yes = *value == 'y';
    return 1;
}

static int read_count(const char *value, long *count)
{
    long found = tidegauge_count(value, TIDEGAUGE_MILLION);

    if (found > 0)
        *count = found;
    return found > 0;
}

static int read_path(const char *value, const char **path)
{
    if (*value != '/' || !tidegauge_are_paths(value) || strchr(value, ':') != NULL)
        return 0;
    *path = value;
    return 1;
}

static int read_url(const char *value, const char **url)
{
    if (strncmp(value, "http://", 7) != 0 && strncmp(value, "https://", 8) != 0)
        return 0;
    *url = value;
    return 1;
}

/* Where the partition of PARTITION:LEVEL ends, and its level; NULL if it is no such text. */
static const char *read_force(const char *value, enum tidegauge_level *level)
{
    const char *colon = strrchr(value, ':');

    return colon != NULL && colon > value && read_level(colon + 1, level) ? colon : NULL;
}

int tidegauge_read_argument(struct tidegauge_site *site, const char *argument)
{
    enum tidegauge_level level;
    const char *value;

    if ((value = value_of(argument, "default")))
        return read_level(value, &site->by_default);
    if ((value = value_of(argument, "bare")))
        return read_level(value, &site->bare);
    if ((value = value_of(argument, "probe")))
        return read_path(value, &site->probe);
    if ((value = value_of(argument, "end")))
        return read_path(value, &site->end);
    if ((value = value_of(argument, "api")))
        return read_url(value, &site->api);
    if ((value = value_of(argument, "end_after")))
        return read_count(value, &site->end_after_s);
    if ((value = value_of(argument, "shards_per_gpu")))
        return read_count(value, &site->shards_per_gpu);
    if ((value = value_of(argument, "cap_shares")))
        return read_yes_or_no(value, &site->caps_shares);
    if ((value = value_of(argument, "mps_shares")))
        return read_yes_or_no(value, &site->shares_mps);
    if ((value = value_of(argument, "force")))
        return read_force(value, &level) != NULL;
    if ((value = value_of(argument, "deny")))
        return *value != '\0';
    return 0;
}

enum tidegauge_level tidegauge_rule_for(const char *partition, int count, char **arguments, int *is_denied)
{
    enum tidegauge_level least = TIDEGAUGE_NO_LEVEL, level = TIDEGAUGE_NO_LEVEL;
    size_t length = strlen(partition);

    *is_denied = 0;
    for (int i = 0; i < count; i++) {
        const char *denied = value_of(arguments[i], "deny"), *forced = value_of(arguments[i], "force");
        const char *end = forced == NULL ? NULL : read_force(forced, &level);

        if (denied != NULL && strcmp(denied, partition) == 0)
            *is_denied = 1;
        if (end != NULL && (size_t)(end - forced) == length && memcmp(forced, partition, length) == 0 && level > least)
            least = level;
    }
    return least;
}
