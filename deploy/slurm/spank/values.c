/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later */
#include "values.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char *const words[] = {"off", "dormant", "stats", "auto", "trace"};

enum tidegauge_level tidegauge_level_of(const char *word)
{
    for (int level = TIDEGAUGE_OFF; level <= TIDEGAUGE_TRACE; level++)
        if (strcmp(word, words[level]) == 0)
            return level;
    return TIDEGAUGE_NO_LEVEL;
}

const char *tidegauge_level_word(enum tidegauge_level level)
{
    return words[level];
}

int tidegauge_is_level(const char *text)
{
    return tidegauge_level_of(text) != TIDEGAUGE_NO_LEVEL;
}

long long tidegauge_billionths(const char *text)
{
    long long value = 0;
    long long unit = 1000 * TIDEGAUGE_MILLION;
    int is_above_0 = 0, digits = 0, after_point = 0;

    for (; *text; text++) {
        if (*text == '.' && !after_point) {
            after_point = 1;
            continue;
        }
        if (*text < '0' || *text > '9' || (value == 1000 * TIDEGAUGE_MILLION && *text != '0'))
            return -1;
        digits++;
        is_above_0 |= *text != '0';
        if (after_point)
            unit /= 10;
        else
            value *= 10;
        value += (*text - '0') * unit;
        if (value > 1000 * TIDEGAUGE_MILLION)
            return -1;
    }
    if (digits == 0 || !is_above_0)
        return -1;
    return value > 0 ? value : 1;
}

int tidegauge_is_fraction(const char *text)
{
    return tidegauge_billionths(text) > 0;
}

long tidegauge_count(const char *text, long most)
{
    long value = 0;

    if (*text == '\0')
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        value = 10 * value + (*text - '0');
        if (value > most)
            return -1;
    }
    return value > 0 ? value : -1;
}

/* What follows RTMIN or RTMAX: nothing, or a sign and one or two digits. */
static int realtime_offset(const char *text, int *offset)
{
    long count;

    *offset = 0;
    if (*text == '\0')
        return 1;
    if ((*text != '+' && *text != '-') || strlen(text) > 3)
        return 0;
    if (strspn(text + 1, "0") == strlen(text + 1))
        return text[1] != '\0';
    count = tidegauge_count(text + 1, 99);
    *offset = (int)(*text == '-' ? -count : count);
    return count > 0;
}

int tidegauge_is_signal(const char *text)
{
    int number, offset;

    if (strncasecmp(text, "SIG", 3) == 0)
        text += 3;
    if (strcasecmp(text, "USR1") == 0 || strcasecmp(text, "USR2") == 0)
        return 1;
    if (strncasecmp(text, "RTMIN", 5) == 0 && realtime_offset(text + 5, &offset))
        number = SIGRTMIN + offset;
    else if (strncasecmp(text, "RTMAX", 5) == 0 && realtime_offset(text + 5, &offset))
        number = SIGRTMAX + offset;
    else
        number = strlen(text) <= 3 ? (int)tidegauge_count(text, 999) : -1;
    return number == SIGUSR1 || number == SIGUSR2 || (number >= SIGRTMIN && number <= SIGRTMAX);
}

int tidegauge_are_paths(const char *text)
{
    int is_empty = 1;

    for (; *text; text++) {
        if ((unsigned char)*text < ' ' || *text == 127 || (*text == ':' && is_empty))
            return 0;
        is_empty = *text == ':';
    }
    return !is_empty;
}

const char *tidegauge_shown(char out[TIDEGAUGE_SHOWN], const char *text)
{
    size_t length = 0;

    for (; text[length] && length < TIDEGAUGE_SHOWN - 1; length++)
        out[length] = text[length] >= ' ' && text[length] <= '~' ? text[length] : '?';
    out[length] = '\0';
    return out;
}

int tidegauge_prepend(char *out, size_t size, const char *folder, const char *before)
{
    size_t used = strlen(folder), folder_length = used;

    if (used >= size)
        return -1;
    memcpy(out, folder, used);
    while (*before) {
        size_t length = strcspn(before, ":");
        int is_folder = length == folder_length && memcmp(before, folder, length) == 0;

        if (length > 0 && !is_folder) {
            if (length + 1 >= size - used) /* the colon, the entry, and the end */
                return -1;
            out[used++] = ':';
            memcpy(out + used, before, length);
            used += length;
        }
        before += length + (before[length] == ':');
    }
    out[used] = '\0';
    return 0;
}
