/* SPANK plugin (spank(7)): --memory-profile and its companions for srun, sbatch and salloc.
 *
 * It turns options, and the site's arguments in plugstack.conf, into the environment that Tidegauge's probe reads; the
 * site's page is docs/slurm_flag.md. No callback ever returns an error but the one of an option with a bad value, on
 * the host where it was given: from Slurm 23.11 on, an error on a compute node fails the step.
 *
 * SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
 */
#include <slurm/spank.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ask.h"
#include "site.h"

SPANK_PLUGIN(tidegauge, 1)

/* The kernel takes no longer NAME=value in an environment (MAX_ARG_STRLEN). */
#define MAX_VARIABLE 131072
#define MAX_PATHS 4096

/* sbatch --export=NONE of Slurm before 23.11 drops options on their way to the batch script, but not what
 * spank_job_control_setenv() was told: that comes with this in front of its name. */
#define CARRIED "SLURM_SPANK_"

enum { PROFILE, FRACTION, SIGNAL, PATHS, SETTINGS };

static int option_given(int index, const char *text, int remote);

static char profile[16], fraction[32], checkpoint_signal[16], paths[MAX_PATHS];

/* Each option with the variable that it sets. An empty value: the option was not given. */
static struct setting {
    struct spank_option option;
    const char *variable, *carried;
    int (*is_valid)(const char *);
    const char *choices;
    char *value;
    size_t size;
} settings[SETTINGS] = {
    [PROFILE] = {{"memory-profile", "LEVEL", "watch GPU memory: off, dormant, stats, auto (default) or trace", 2,
                  PROFILE, option_given},
                 "TIDEGAUGE_PROFILE", CARRIED "TIDEGAUGE_PROFILE", tidegauge_is_level, TIDEGAUGE_LEVELS, profile,
                 sizeof profile},
    [FRACTION] = {{"memory-fraction", "F", "share of each GPU that PyTorch may take, above 0 and at most 1", 1,
                   FRACTION, option_given},
                  "TIDEGAUGE_MEMORY_FRACTION", CARRIED "TIDEGAUGE_MEMORY_FRACTION", tidegauge_is_fraction,
                  TIDEGAUGE_FRACTIONS, fraction, sizeof fraction},
    [SIGNAL] = {{"memory-profile-signal", "SIG", "signal that makes every rank save a checkpoint, such as USR2", 1,
                 SIGNAL, option_given},
                "TIDEGAUGE_CHECKPOINT_SIGNAL", CARRIED "TIDEGAUGE_CHECKPOINT_SIGNAL", tidegauge_is_signal,
                TIDEGAUGE_SIGNALS, checkpoint_signal, sizeof checkpoint_signal},
    [PATHS] = {{"memory-profile-checkpoints", "PATH", "checkpoint folders, separated by ':'", 1,
                PATHS, option_given},
               "TIDEGAUGE_CHECKPOINT_PATH", CARRIED "TIDEGAUGE_CHECKPOINT_PATH", tidegauge_are_paths, TIDEGAUGE_PATHS,
               paths, sizeof paths},
};

static struct tidegauge_site site = {.by_default = TIDEGAUGE_OFF, .bare = TIDEGAUGE_AUTO, .end_after_s = 60};

/* Of srun: its job, 0 where it has none, and when that was known. */
static uint32_t job_id;
static struct timespec began;

/* One option of the command line, of an #SBATCH line or of SLURM_SPANK__SLURM_SPANK_OPTION_tidegauge_...; once more on
 * each compute node, where an optional argument that was not given comes as NULL or "(null)". */
static int option_given(int index, const char *text, int remote)
{
    struct setting *setting = &settings[index];
    char shown[TIDEGAUGE_SHOWN];

    if (text == NULL || (index == PROFILE && (*text == '\0' || strcmp(text, "(null)") == 0)))
        text = index == PROFILE ? tidegauge_level_word(site.bare) : "";
    if (setting->is_valid(text) && strlen(text) < setting->size) {
        strcpy(setting->value, text);
        return 0;
    }
    if (remote) {
        slurm_info("tidegauge: --%s: '%s' is ignored", setting->option.name, tidegauge_shown(shown, text));
        return 0;
    }
    slurm_spank_log("--%s: '%s' is not %s", setting->option.name, tidegauge_shown(shown, text), setting->choices);
    return -1;
}

int slurm_spank_init(spank_t spank, int ac, char **av)
{
    spank_context_t context = spank_context();
    char shown[TIDEGAUGE_SHOWN];

    for (int i = 0; i < ac; i++) {
        if (tidegauge_read_argument(&site, av[i]))
            continue;
        /* For the admin, in slurmd's log. Users can do nothing about it. */
        if (context == S_CTX_SLURMD)
            slurm_error("tidegauge: argument '%s' in plugstack.conf is not understood and ignored",
                        tidegauge_shown(shown, av[i]));
        else if (context == S_CTX_REMOTE)
            slurm_info("tidegauge: argument '%s' in plugstack.conf is ignored", tidegauge_shown(shown, av[i]));
    }
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
        return 0;
    for (int i = 0; i < SETTINGS; i++)
        if (spank_option_register(spank, &settings[i].option) != ESPANK_SUCCESS)
            slurm_error("tidegauge: --%s is not available here", settings[i].option.name);
    return 0;
}

/* What is no error, but not what the user expects either: said once, where the job is submitted. */
static void advise(void)
{
    if (*fraction && strcmp(profile, tidegauge_level_word(TIDEGAUGE_OFF)) == 0)
        slurm_spank_log("--memory-fraction has no effect with --memory-profile=off; "
                        "dormant applies it and reads nothing");
    if (*checkpoint_signal && !*paths && getenv(settings[PATHS].variable) == NULL)
        slurm_spank_log("--memory-profile-signal has no effect without --memory-profile-checkpoints: "
                        "a new file there is the proof of a checkpoint");
}

/* A step inside an allocation: the one case in which the partition is known before anything runs. */
static void tell_rule(const char *partition, int ac, char **av)
{
    int is_denied;
    enum tidegauge_level least = tidegauge_rule_for(partition, ac, av, &is_denied);
    char shown[TIDEGAUGE_SHOWN];

    if (!*profile)
        return;
    tidegauge_shown(shown, partition);
    if (is_denied)
        slurm_spank_log("--memory-profile has no effect in partition %s, where the site does not allow it", shown);
    else if (least > tidegauge_level_of(profile))
        slurm_spank_log("--memory-profile=%s is raised to %s, the least in partition %s", profile,
                        tidegauge_level_word(least), shown);
}

/* Where the job is submitted: tells Prolog and Epilog, and a batch script of --export=NONE. */
int slurm_spank_init_post_opt(spank_t spank, int ac, char **av)
{
    spank_context_t context = spank_context();
    const char *partition = getenv("SLURM_JOB_PARTITION");

    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR)
        return 0;
    if (getenv("SLURM_JOB_ID") == NULL)
        advise();
    else if (context == S_CTX_LOCAL && partition != NULL)
        tell_rule(partition, ac, av);
    for (int i = 0; i < SETTINGS; i++) {
        const char *value = settings[i].value;

        if (i == PROFILE && !*value && site.by_default > TIDEGAUGE_OFF && getenv(settings[i].variable) == NULL)
            value = tidegauge_level_word(site.by_default);
        if (*value && spank_job_control_setenv(spank, settings[i].variable, value, 1) != ESPANK_SUCCESS)
            slurm_verbose("tidegauge: Prolog and Epilog do not get %s", settings[i].variable);
    }
    return 0;
}

/* A variable of the task, empty where it is not set. 0 where it does not fit; the buffer then holds nothing. */
static int get(spank_t spank, const char *name, char *out, int size)
{
    spank_err_t rc = spank_getenv(spank, name, out, size);

    if (rc != ESPANK_SUCCESS)
        *out = '\0';
    return rc != ESPANK_NOSPACE;
}

static void set(spank_t spank, const char *name, const char *value)
{
    spank_err_t rc = spank_setenv(spank, name, value, 1);

    if (rc != ESPANK_SUCCESS)
        slurm_info("tidegauge: %s is not set: %s", name, spank_strerror(rc));
}

/* Fills in what was not given as an option here, from what reached us in another way. The user's own variable stays. */
static void complete(spank_t spank, struct setting *setting)
{
    static char own[MAX_PATHS];

    if (*setting->value)
        return;
    if (!get(spank, setting->variable, own, sizeof own) || *own)
        return;
    get(spank, setting->carried, own, sizeof own);
    if (setting->is_valid(own) && strlen(own) < setting->size)
        strcpy(setting->value, own);
}

/* How many GPUs a task sees: the entries of CUDA_VISIBLE_DEVICES; 0 where Slurm gave it none that way. */
static long visible_gpus(spank_t spank)
{
    char devices[4096];
    long count = 0;

    get(spank, "CUDA_VISIBLE_DEVICES", devices, sizeof devices);
    for (const char *at = devices; *at;) {
        size_t length = strcspn(at, ",");

        count += length > 0;
        at += length + (at[length] == ',');
    }
    return count;
}

/* The share of each of its GPUs that the task was given, as parts of a whole; 0 where it shares none. */
static int share_of_gpu(spank_t spank, long long *parts, long long *whole)
{
    char number[32];

    if (site.shards_per_gpu > 0) {
        get(spank, "SLURM_SHARDS_ON_NODE", number, sizeof number);
        *parts = tidegauge_count(number, TIDEGAUGE_MILLION);
        *whole = site.shards_per_gpu * visible_gpus(spank);
        if (*parts > 0 && *parts < *whole)
            return 1;
    }
    if (site.shares_mps) {
        get(spank, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", number, sizeof number);
        *parts = tidegauge_count(number, 100);
        *whole = 100;
        return *parts > 0 && *parts < *whole;
    }
    return 0;
}

/* Tells the share, and caps the task to it where the site wants that and the user did not ask for less. */
static void set_share(spank_t spank)
{
    char text[64];
    long long parts, whole, share_millionths, cap_millionths;

    if (!share_of_gpu(spank, &parts, &whole))
        return;
    share_millionths = parts * TIDEGAUGE_MILLION / whole;
    if (share_millionths == 0)
        return;
    snprintf(text, sizeof text, "0.%06lld", share_millionths);
    set(spank, "TIDEGAUGE_GPU_SHARE", text);
    /* One part in 16 is left to what lies outside PyTorch's allocator, as with `tidegauge run --gpu-share`
     * (core/fraction.py, UNSEEN_CONTEXT_PART). */
    cap_millionths = share_millionths * 15 / 16;
    if (!site.caps_shares || cap_millionths == 0)
        return;
    get(spank, settings[FRACTION].variable, text, sizeof text);
    if (tidegauge_is_fraction(text) && tidegauge_billionths(text) <= 1000 * cap_millionths)
        return;
    snprintf(text, sizeof text, "0.%06lld", cap_millionths);
    set(spank, settings[FRACTION].variable, text);
}

/* The level for this task; TIDEGAUGE_NO_LEVEL where nobody asked for one. */
static enum tidegauge_level level_for(spank_t spank)
{
    char text[64];

    if (*profile)
        return tidegauge_level_of(profile);
    get(spank, settings[PROFILE].variable, text, sizeof text);
    if (*text) /* the user's own; what is no level stays as it is, for the probe says so, as it does everywhere */
        return tidegauge_level_of(text);
    if (site.by_default > TIDEGAUGE_OFF)
        return site.by_default;
    get(spank, settings[FRACTION].variable, text, sizeof text);
    /* The probe applies a cap. Without the least level that makes it run, the cap would be a mere wish. */
    return *text ? TIDEGAUGE_DORMANT : TIDEGAUGE_NO_LEVEL;
}

/* Makes the probe importable in environments that do not have Tidegauge. */
static void add_probe(spank_t spank, const char *folder)
{
    static char before[MAX_VARIABLE], after[MAX_VARIABLE - sizeof "PYTHONPATH="];
    struct stat status;

    if (stat(folder, &status) != 0 || !S_ISDIR(status.st_mode)) {
        slurm_info("tidegauge: no folder %s (probe= in plugstack.conf) on this node: PYTHONPATH is left unchanged", folder);
        return;
    }
    if (!get(spank, "PYTHONPATH", before, sizeof before) ||
        tidegauge_prepend(after, sizeof after, folder, before) != 0) {
        slurm_info("tidegauge: the job's PYTHONPATH has no room for %s", folder);
        return;
    }
    set(spank, "PYTHONPATH", after);
}

/* In each task and the batch script, as the user, right before it starts. */
int slurm_spank_task_init(spank_t spank, int ac, char **av)
{
    char partition[256];
    int is_denied;
    enum tidegauge_level level, least;

    get(spank, "SLURM_JOB_PARTITION", partition, sizeof partition);
    least = tidegauge_rule_for(partition, ac, av, &is_denied);
    if (is_denied) {
        spank_unsetenv(spank, settings[PROFILE].variable);
        return 0;
    }
    for (int i = 0; i < SETTINGS; i++) {
        complete(spank, &settings[i]);
        if (i != PROFILE && *settings[i].value)
            set(spank, settings[i].variable, settings[i].value);
    }
    set_share(spank);
    level = level_for(spank);
    level = level > least ? level : least;
    if (level == TIDEGAUGE_NO_LEVEL)
        return 0;
    set(spank, settings[PROFILE].variable, tidegauge_level_word(level));
    if (level > TIDEGAUGE_OFF && site.probe != NULL)
        add_probe(spank, site.probe);
    return 0;
}

/* In srun, as soon as it has a job. */
int slurm_spank_local_user_init(spank_t spank, int ac, char **av)
{
    (void)ac, (void)av;
    if (spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS)
        job_id = 0;
    clock_gettime(CLOCK_MONOTONIC, &began);
    return 0;
}

/* Whether the tasks of this srun were watched, as far as one knows here. */
static int is_watched(int ac, char **av)
{
    const char *asked = *profile ? profile : getenv(settings[PROFILE].variable);
    const char *partition = getenv("SLURM_JOB_PARTITION");
    enum tidegauge_level level = asked != NULL && *asked ? tidegauge_level_of(asked) : site.by_default, least;
    int is_denied = 0;

    least = tidegauge_rule_for(partition == NULL ? "" : partition, ac, av, &is_denied);
    return !is_denied && (level > least ? level : least) > TIDEGAUGE_DORMANT;
}

/* When srun ends: tells, where it prints, what its job used so far. What cannot be told in two seconds is not. */
int slurm_spank_exit(spank_t spank, int ac, char **av)
{
    char job[16], user[16], since[32], line[1024];
    char *arguments[] = {(char *)site.end, "job", job, "--brief", "--wait", "1", "--since", since, "--uid", user,
                         NULL, NULL, NULL};
    struct timespec now;

    (void)spank;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (spank_context() != S_CTX_LOCAL || site.end == NULL || job_id == 0 || now.tv_sec - began.tv_sec < site.end_after_s)
        return 0;
    if (!is_watched(ac, av))
        return 0;
    snprintf(job, sizeof job, "%u", (unsigned)job_id);
    snprintf(user, sizeof user, "%u", (unsigned)getuid());
    /* What ended before this srun began is an earlier job of that number; a minute for clocks that differ. */
    snprintf(since, sizeof since, "%llds", (long long)(now.tv_sec - began.tv_sec) + 60);
    if (site.api != NULL) {
        arguments[10] = "--api";
        arguments[11] = (char *)site.api;
    }
    tidegauge_ask(arguments, 2000, line, sizeof line);
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < ' ' || *at == '\x7f')
            *at = '?';
    if (*line)
        slurm_info("tidegauge: %s", line); /* not with --quiet */
    return 0;
}
