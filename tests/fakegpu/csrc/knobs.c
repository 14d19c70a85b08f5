#include "knobs.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_line(const char *format, va_list arguments)
{
    char text[512];
    vsnprintf(text, sizeof text, format, arguments);
    fprintf(stderr, "fakegpu: %s\n", text);
}

void complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}

void give_up(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
    fflush(stderr);
    /* _exit, not exit: we may be inside a static constructor or under somebody's lock. */
    _exit(3);
}

bool knob_is_set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0';
}

bool knob_equals(const char *name, const char *word)
{
    const char *value = getenv(name);
    return value != NULL && strcmp(value, word) == 0;
}

uint64_t knob_number(const char *name, uint64_t otherwise, uint64_t lowest, uint64_t highest)
{
    if (!knob_is_set(name))
        return otherwise;
    const char *text = getenv(name);
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || *text == '-' || value < lowest || value > highest)
        give_up("%s=%s is not a number from %llu to %llu", name, text, (unsigned long long)lowest,
                (unsigned long long)highest);
    return value;
}
