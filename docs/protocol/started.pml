/* Two communicators whose exchanges are started and waited for in any order: dgcl/transport/shared_memory/executor.py (run, assist) and
 * dgcl/transport/common/failure_detector.py (_elsewhere), for the model checker SPIN. How one exchange goes is exchange.pml's.
 *
 * N ranks, each with one thread. Each makes one call on each of two communicators; each call is started and then waited for, and each
 * rank chooses freely the order of these four steps (who waits right after the start makes an ordinary call). In call 0 a row goes
 * from rank to rank upwards, in call 1 downwards, so who waits for the one may have to pass on the other first. A rank that waits
 * carries on all that it has started, and looks whether a peer waits in a call that it has not begun itself.
 *
 * What is checked, over all orders that the ranks may choose:
 *   - no deadlock (an invalid end state): every rank gets to its end, or somebody finds that the orders cross;
 *   - nobody finds that unless they do (assert CROSSED): one rank waits in call c before it begins the other one, and another rank
 *     waits in that before it begins c.
 *
 * MUTANT breaks it in one place: 1 a rank that waits carries on that call alone, 2 a call that a peer has begun counts as one in which
 * it waits, 3 whether the peer has begun this rank's call is read before whether it waits in the other one.
 */
#ifndef N
#define N 3
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define AT(c, r) ((c) * N + (r))
/* Where call c's row is when rank r may pass it on: its place in the chain. */
#define PLACE(c, r) ((c) == 0 -> (r) : N - 1 - (r))
#define CAN_PASS(c, r) (begun[AT(c, r)] && at[c] == PLACE(c, r) && at[c] < N - 1 && \
                        begun[AT(c, ((c) == 0 -> (r) + 1 : (r) - 1))])
/* A rank's part of call c is over when it has passed the row on; the last one's when it has come. */
#define OVER(c, r) (at[c] > PLACE(c, r) || (at[c] == N - 1 && PLACE(c, r) == N - 1))

bool begun[2 * N];             /* what the boards show: the call was begun; */
bool stuck[2 * N];             /* its rank was seen to wait in it */
byte at[2];                    /* how far the row of each call has come */
bool found;                    /* somebody has told all that the orders cross */
bool first[2 * N];             /* ghost: rank r waited in call c before it began the other one */

/* Some peer waits in the other call, which this rank has not begun, and has not begun this one. */
#define crosses(c, p) (stuck[AT(1 - (c), p)] && !begun[AT(c, p)])
#if N == 2
#define crossing(c) (!begun[AT(1 - (c), me)] && (crosses(c, 0) || crosses(c, 1)))
#else
#define crossing(c) (!begun[AT(1 - (c), me)] && (crosses(c, 0) || crosses(c, 1) || crosses(c, 2)))
#endif

inline look(c) {
    /* As FailureDetector, asked whether the peer is elsewhere, once for a peer of the rank's choice; each read is a step. */
    stuck[AT(c, me)] = true;
    if
    :: !begun[AT(1 - c, me)] ->
        select(peer : 0 .. N - 1);
        if
        :: peer != me ->
#if MUTANT == 3
            seen_begun = begun[AT(c, peer)];
            seen_stuck = stuck[AT(1 - c, peer)];
#elif MUTANT == 2
            seen_stuck = begun[AT(1 - c, peer)];
            seen_begun = begun[AT(c, peer)];
#else
            seen_stuck = stuck[AT(1 - c, peer)];
            seen_begun = begun[AT(c, peer)];
#endif
            if
            :: seen_stuck && !seen_begun ->
                assert(first[AT(c, me)] && first[AT(1 - c, peer)]);   /* CROSSED */
                found = true
            :: else
            fi
        :: else
        fi
    :: else
    fi
}

inline wait(c) {
    if
    :: !begun[AT(1 - c, me)] -> first[AT(c, me)] = true
    :: else
    fi;
    do
    :: found -> goto end
    :: OVER(c, me) -> break
    :: CAN_PASS(c, me) -> at[c]++
#if MUTANT != 1
    :: CAN_PASS(1 - c, me) -> at[1 - c]++
#endif
    :: !OVER(c, me) && !looked -> look(c); looked = true
    /* It looks again and again; what it would see is all that matters, so it does when there is something to see. */
    :: !OVER(c, me) && looked && crossing(c) -> looked = false
    od;
    looked = false
}

proctype Rank(byte me) {
    bool waited[2], looked, seen_stuck, seen_begun;
    byte peer;
    do
    :: found -> break
    :: !begun[AT(0, me)] -> begun[AT(0, me)] = true
    :: !begun[AT(1, me)] -> begun[AT(1, me)] = true
    :: begun[AT(0, me)] && !waited[0] -> wait(0); waited[0] = true
    :: begun[AT(1, me)] && !waited[1] -> wait(1); waited[1] = true
    :: waited[0] && waited[1] -> break
    od;
end:
    skip
}

init {
    byte r = 0;
    atomic {
        do
        :: r < N -> run Rank(r); r++
        :: else -> break
        od
    }
}
