/* Calls helper threads (shmring/collectives/engine/team.h) again and again, to work that only counts; built and loaded by tests. */
#include <stdint.h>
#include <stdlib.h>

#include "core/c/atomics.h"
#include "collectives/engine/team.h"

#define TICK_NS 20000000

static void count_up(void *what, int number) {
    (void)number;
    uint32_t seen = load_relaxed_u32(what);
    while (!compare_swap_u32(what, seen, seen + 1)) seen = load_relaxed_u32(what);
}

/* Returns how often helpers were at work in `ncalls` calls, -1 without memory; stores how many threads there were. */
int64_t count_calls(int nthreads, int ncalls, int *started) {
    uint32_t count = 0;
    shmring_team *team = make_team(count_up, &count, 0);
    if (team == NULL) return -1;
    start_helpers(team, nthreads - 1);
    *started = 1 + team->nhelpers;
    for (int i = 0; i < ncalls; i++) {
        call_helpers(team);
        shmring_patience patience;
        be_patient(&patience, -1);
        while (!await_helpers(team, &patience, TICK_NS)) {}
    }
    dismiss_helpers(team, 0);
    free(team);
    return count;
}
