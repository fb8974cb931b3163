/* The protocol of dgcl/transport/common/control_page.py and dgcl/transport/shared_memory/engine.py, for the model checker SPIN.
 *
 * N ranks, all with the same kind of plan: in stage 0 every rank sends its own row to the next rank of a ring; in stage k it passes
 * on what stage k - 1 brought it (a relay of the row that started k ranks before). So every send but the first depends on a receive,
 * and every rank both sends to and receives from a neighbour; with N = 2 the two directions share a pair.
 *
 * What is modelled, one step per access to shared memory: ready lines (call number, buffer), done counters (monotonic, never
 * reset), buffers from a pool, results that the program keeps for a while and then drops, the engine's free order of work.
 * What is checked:
 *   - no deadlock (an invalid end state);
 *   - a rank never sends on a row that is not complete (assert COMPLETE);
 *   - nobody writes into a buffer that does not belong to the call it writes for (assert OWN), in particular never into a result;
 *   - when a call returns, its buffer holds exactly this call's rows (assert RESULT), and a result stays what it was until it is
 *     dropped (assert KEPT).
 *
 * Two programs: calls with an even number run one of K2 stages, calls with an odd number one of K stages, on the same lines and
 * counters. The counters count the stages of the longer one in every call, so that they grow with every call whatever it runs.
 *
 * Parameters (-D): N ranks, K stages (< N), K2 stages of the other program (<= K; K if not given), CALLS calls, B buffers per rank
 * (>= 2 lets a result live through the next call).
 * MUTANT breaks the protocol in one place, to show that the checks bite: 1 the call number published before the buffer, 2 done set
 * before the row is written, 3 a relay that does not wait for its row, 4 a call that returns before its last row has come, 5 done
 * that counts the stages of the program of its own call instead of those of the longest (it bites where K2 < K).
 */
#ifndef N
#define N 3
#endif
#ifndef K
#define K 2
#endif
#ifndef K2
#define K2 K
#endif
#define STAGES(c) ((c) % 2 == 0 -> K2 : K)
#ifndef CALLS
#define CALLS 3
#endif
#ifndef B
#define B 2
#endif

#ifndef MUTANT
#define MUTANT 0
#endif

#define PREV(r) (((r) + N - 1) % N)
#define NEXT(r) (((r) + 1) % N)
#define ROW(r, b, k) rows[((r) * B + (b)) * K + (k)]
#define FREE 0
#if MUTANT == 5
#define DONE(c, s) ((c) * STAGES(c) + (s) + 1)
#else
#define DONE(c, s) ((c) * K + (s) + 1)
#endif

byte ready_call[N];            /* the line that rank r shows to PREV(r), its only writer */
byte ready_buffer[N];
byte done[N];                  /* what rank r has finished towards NEXT(r): call * K + stage + 1 */
byte rows[N * B * K];          /* the call whose row lies there; 0: nothing yet */
byte owner[N * B];             /* ghost: the call a buffer belongs to; FREE in the pool */

proctype Rank(byte me) {
    byte call = 1, buffer, kept = B, kept_call, peer_buffer;
    byte sent, received, k;
    do
    :: call <= CALLS ->
        /* Take a free buffer. What is in it is older calls' rows: nothing is cleared. */
        atomic {
            buffer = 0;
            do
            :: buffer < B && owner[me * B + buffer] != FREE -> buffer++
            :: else -> break
            od;
            assert(buffer < B);
            owner[me * B + buffer] = call;
        }
        /* Publish: where first, the call number last. */
#if MUTANT == 1
        ready_call[me] = call;
        ready_buffer[me] = buffer;
#else
        ready_buffer[me] = buffer;
        ready_call[me] = call;
#endif
        sent = 0; received = 0;
        do
        :: received < STAGES(call) && done[PREV(me)] >= DONE(call, received) ->
            assert(ROW(me, buffer, received) == call);            /* COMPLETE: done was seen, so the row is there */
            received++
#if MUTANT == 3
        :: sent < STAGES(call) && ready_call[NEXT(me)] >= call ->
#else
        :: sent < STAGES(call) && sent <= received && ready_call[NEXT(me)] >= call ->
#endif
            assert(ready_call[NEXT(me)] == call);
            peer_buffer = ready_buffer[NEXT(me)];
            if
            :: sent > 0 -> assert(ROW(me, buffer, sent - 1) == call)
            :: else
            fi;
            assert(owner[NEXT(me) * B + peer_buffer] == call);    /* OWN */
#if MUTANT == 2
            done[me] = DONE(call, sent);
            ROW(NEXT(me), peer_buffer, sent) = call;
#else
            ROW(NEXT(me), peer_buffer, sent) = call;
            done[me] = DONE(call, sent);
#endif
            sent++
#if MUTANT == 4
        :: sent == STAGES(call) -> break
#else
        :: sent == STAGES(call) && received == STAGES(call) -> break
#endif
        od;
        /* The call returns; its buffer is now the program's result. */
        atomic {
            k = 0;
            do
            :: k < STAGES(call) -> assert(ROW(me, buffer, k) == call); k++   /* RESULT */
            :: else -> break
            od;
            k = 0;
        }
        /* An older result, if one is kept, is still what it was; the program drops it now or keeps only that one. */
        if
        :: kept < B ->
            atomic {
                k = 0;
                do
                :: k < STAGES(kept_call) -> assert(ROW(me, kept, k) == kept_call); k++   /* KEPT */
                :: else -> break
                od;
                k = 0;
                owner[me * B + kept] = FREE;
                kept = buffer; kept_call = call;
            }
        :: kept == B -> atomic { kept = buffer; kept_call = call }
        :: owner[me * B + buffer] = FREE                           /* dropped at once */
        fi;
        call++
    :: else -> break
    od
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
