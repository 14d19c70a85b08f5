/* The words that Tidegauge's options and variables may hold. Values only: nothing here knows Slurm.
 *
 * SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
 */
#ifndef TIDEGAUGE_VALUES_H
#define TIDEGAUGE_VALUES_H

#include <stddef.h>

/* From nothing at all to everything: the order is what force=PARTITION:LEVEL compares. */
enum tidegauge_level {
    TIDEGAUGE_NO_LEVEL = -1,
    TIDEGAUGE_OFF,
    TIDEGAUGE_DORMANT,
    TIDEGAUGE_STATS,
    TIDEGAUGE_AUTO,
    TIDEGAUGE_TRACE
};

#define TIDEGAUGE_LEVELS "one of off, dormant, stats, auto, trace"
#define TIDEGAUGE_FRACTIONS "a decimal number above 0 and at most 1, such as 0.5"
#define TIDEGAUGE_SIGNALS "USR1, USR2, or a realtime signal such as RTMIN+3"
#define TIDEGAUGE_PATHS "a path, or several separated by ':'"

#define TIDEGAUGE_MILLION 1000000LL
#define TIDEGAUGE_SHOWN 48

/* The level that a word names; TIDEGAUGE_NO_LEVEL for any other word. */
enum tidegauge_level tidegauge_level_of(const char *word);
const char *tidegauge_level_word(enum tidegauge_level level);

/* A decimal number above 0 and at most 1 in billionths, what lies behind the ninth digit left out but never down to 0;
 * -1 for any other text. Whole numbers, because strtod() and printf() follow the locale of whoever loads us. */
long long tidegauge_billionths(const char *text);

/* A decimal number of digits only, from 1 to most; -1 for any other text. */
long tidegauge_count(const char *text, long most);

/* Whether the probe takes the text as a signal that may ask a job for a checkpoint (core/jobs/checkpoint_signal.py). */
int tidegauge_is_signal(const char *text);

int tidegauge_is_level(const char *text);
int tidegauge_is_fraction(const char *text);

/* One path or more, none of them empty, nothing unprintable in them. */
int tidegauge_are_paths(const char *text);

/* The beginning of a text that anybody may have written, fit for a log: printable ASCII, cut. Returns out. */
const char *tidegauge_shown(char out[TIDEGAUGE_SHOWN], const char *text);

/* A PYTHONPATH that begins with folder: what was there follows, without empty entries (they would mean the current
 * directory) and without the folder's own. Returns 0, or -1 where it does not fit; out is then of no use. */
int tidegauge_prepend(char *out, size_t size, const char *folder, const char *before);

#endif
