/* What a site says about profiling, as arguments in plugstack.conf.
 *
 * SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
 */
#ifndef TIDEGAUGE_SITE_H
#define TIDEGAUGE_SITE_H

#include "values.h"

struct tidegauge_site {
    enum tidegauge_level by_default; /* default=LEVEL: of a job that says nothing */
    enum tidegauge_level bare;       /* bare=LEVEL: of a bare --memory-profile */
    const char *probe;               /* probe=FOLDER: for PYTHONPATH; part of the argument; NULL where not said */
    const char *end;                 /* end=PROGRAM: the command tidegauge, asked at the end of srun; NULL where not said */
    const char *api;                 /* api=URL: for it */
    long end_after_s;                /* end_after=SECONDS: a shorter srun does not ask */
    long shards_per_gpu;             /* shards_per_gpu=N; 0 where not said */
    int caps_shares;                 /* cap_shares=yes: a job that shares a GPU is capped to its share */
    int shares_mps;                  /* mps_shares=yes: the percentage of MPS is meant as a share of memory, too */
};

/* Reads one argument; 0 where it is not understood, and nothing is changed then. force and deny are checked only. */
int tidegauge_read_argument(struct tidegauge_site *site, const char *argument);

/* What the arguments force=PARTITION:LEVEL and deny=PARTITION say about a partition: the least level that its tasks
 * have (TIDEGAUGE_NO_LEVEL: none), and whether it is denied, which is stronger. */
enum tidegauge_level tidegauge_rule_for(const char *partition, int count, char **arguments, int *is_denied);

#endif
