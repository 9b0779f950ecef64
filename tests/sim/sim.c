/* sim.c: runs seeds.
 *
 *   sim SEED [STEPS]          one run, replayed; SLUICE_SIM_VERBOSE=1 tells what happens,
 *                             SLUICE_SIM_CHECK=1 checks after every step (another run, strictly)
 *   sim --broker SEED [STEPS] the same with the broker profile
 *   sim --list FILE [FRESH]   every seed of the file, then FRESH new ones; a process for each
 *   sim --nth [SCENE [FAULT [N]]]  every call fails once (nth.c)
 *   sim --forever N           N new seeds after another (0: until stopped)
 */
#include "tests/sim/sim.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "fs/base/hash.h"
#include "fs/base/log.h"

enum { STEPS = 1200, RUN_SECONDS_MAX = 120 };

static void run(uint64_t seed, bool broker, uint64_t steps)
{
    static struct world w;
    bool verbose = getenv("SLUICE_SIM_VERBOSE") != NULL;
    if (!verbose)
        log_set_fd(-1);
    else if (!strcmp(getenv("SLUICE_SIM_VERBOSE"), "2"))
        log_set_level(LOG_LV_DEBUG);
    world_make(&w, seed, broker);
    w.verbose = verbose;
    act_choose(&w);
    (void)world_open(&w);
    bool each = getenv("SLUICE_SIM_CHECK") != NULL;
    for (w.step = 0; w.step < steps; w.step++) {
        act_one(&w);
        if (each)
            check_now(&w);
    }
    while (simdisk_frozen(w.disk)) /* a crash that was planned still comes */
        act_one(&w);
    simdisk_freeze(w.disk, 0);
    char why[200];
    if (w.disk_trouble) { /* what failed is tried again by the next daemon only */
        world_crash(&w, false);
        (void)world_open(&w);
        model_recover(&w, false);
    }
    handles_drop(&w);
    if (!world_settle(&w, why, sizeof why))
        sim_fail(&w, "it does not come to rest: %s", why);
    check_settled(&w);
    world_stop(&w);
    (void)world_open(&w);
    model_recover(&w, false);
    check_now(&w);
    world_stop(&w);
    printf("sim: seed=%" PRIu64 "%s ok: %" PRIu64 " writes %" PRIu64 " reads (%" PRIu64
           " errors) %" PRIu64 " fsyncs %" PRIu64 " commands %" PRIu64 " crashes (%" PRIu64
           " power) %" PRIu64 " checks\n",
           seed, broker ? " broker" : "", w.count.writes, w.count.reads, w.count.read_errors,
           w.count.syncs, w.count.commands, w.count.crashes, w.count.powers, w.count.checks);
    fflush(stdout);
    world_free(&w);
}

static uint64_t fresh(void)
{
    uint64_t s;
    random_bytes(&s, sizeof s);
    return s >> 24;
}

static int run_apart(uint64_t seed, bool broker, uint64_t steps)
{
    printf("sim: seed=%" PRIu64 "%s\n", seed, broker ? " broker" : "");
    fflush(stdout); /* must survive the crash it explains */
    pid_t pid = fork();
    if (pid == 0) {
        alarm(RUN_SECONDS_MAX);
        run(seed, broker, steps);
        _exit(0); /* exit would move the parent's place in the list */
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 1;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    printf("sim: seed=%" PRIu64 "%s FAILED (%s %d)\n", seed, broker ? " broker" : "",
           WIFSIGNALED(status) ? "signal" : "exit",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return 1;
}

static int run_list(const char *path, bool broker, unsigned long fresh_n)
{
    FILE *f = fopen(path, "r");
    if (!f) {
        fprintf(stderr, "sim: %s: %s\n", path, strerror(errno));
        return 2;
    }
    int failed = 0;
    uint64_t seed;
    while (fscanf(f, "%" SCNu64 "%*[^\n]", &seed) == 1)
        failed += run_apart(seed, broker, STEPS);
    fclose(f);
    while (fresh_n--)
        failed += run_apart(fresh(), broker, STEPS);
    return failed != 0;
}

int main(int argc, char **argv)
{
    bool broker = argc > 1 && !strcmp(argv[1], "--broker");
    argc -= broker;
    argv += broker;
    const char *arg = argc > 1 ? argv[1] : "";
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    if (!strcmp(arg, "--nth"))
        return nth_main(argc - 2, argv + 2);
    if (!strcmp(arg, "--list"))
        return run_list(argc > 2 ? argv[2] : "", broker, argc > 3 ? strtoul(argv[3], NULL, 0) : 0);
    if (!strcmp(arg, "--forever")) {
        int failed = 0;
        for (uint64_t k = 0; n == 0 || k < n; k++)
            failed += run_apart(fresh(), broker, STEPS);
        return failed != 0;
    }
    uint64_t seed = *arg ? strtoull(arg, NULL, 0) : fresh();
    printf("sim: seed=%" PRIu64 "%s\n", seed, broker ? " broker" : "");
    fflush(stdout);
    run(seed, broker, n ? n : STEPS);
    return 0;
}
