/* The futex wake-up of dgcl/kernels/futex.py, for the model checker SPIN: no wake-up is lost.
 *
 * R wakers each raise a counter of their own CALLS times; one sleeper waits for all of them to reach 1, then 2, and so on, and
 * sleeps on its word in between. Sleeps do not end by themselves here, so a lost wake-up is a sleeper that never wakes: an invalid end
 * state.
 *
 * Every store goes into its writer's store buffer first, and from there into memory, in order but at any time: that is what x86
 * does, and what release stores do on Arm. A fence waits until the buffer is empty. Loads of a word that lies in one's own buffer do
 * not occur. The kernel compares the word and lets the sleeper sleep in one step, against the step that wakes it.
 *
 * MUTANT breaks it in one place: 1 a waker without its fence, 2 a sleeper without its fence, 3 a sleeper that does not look at the
 * flags once more after it has set the word, 4 a waker that wakes the sleeper but leaves the word as it is.
 */
#ifndef R
#define R 2
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define WORD 255
byte flags[R];
byte waiting;
bool asleep;
byte over;                                     /* processes that have ended */

chan buffer[R + 1] = [3] of { byte, byte };    /* (word, value); the sleeper's is the last */

proctype Memory(byte owner) {                  /* empties one store buffer */
    byte word, value;
    do
    :: atomic { buffer[owner] ? word, value ->
           if
           :: word == WORD -> waiting = value
           :: else -> flags[word] = value
           fi }
    :: over == R + 1 && empty(buffer[owner]) -> break
    od
}

proctype Waker(byte me) {
    byte call = 1, seen;
    do
    :: call <= CALLS ->
        buffer[me] ! me, call;
#if MUTANT != 1
        empty(buffer[me]);
#endif
        seen = waiting;
        if
        :: seen == 1 ->
#if MUTANT != 4
            buffer[me] ! WORD, 0;
            empty(buffer[me]);                 /* the system call that follows is a fence */
#endif
            asleep = false
        :: else
        fi;
        call++
    :: else -> break
    od;
    over++
}

proctype Sleeper() {
    byte call = 1, i;
    do
    :: call <= CALLS ->
        i = 0;
        do
        :: i < R && flags[i] >= call -> i++
        :: i < R && flags[i] < call ->
            buffer[R] ! WORD, 1;
#if MUTANT != 2
            empty(buffer[R]);
#endif
#if MUTANT != 3
            if
            :: flags[i] >= call -> skip
            :: else ->
#endif
                atomic {
                    if
                    :: waiting == 1 -> asleep = true
                    :: waiting != 1 && nempty(buffer[R]) -> asleep = true   /* one's own store is seen at once */
                    :: waiting != 1 && empty(buffer[R])
                    fi
                }
                !asleep;
#if MUTANT != 3
            fi;
#endif
            buffer[R] ! WORD, 0
        :: i == R -> break
        od;
        call++
    :: else -> break
    od;
    over++
}

init {
    byte i;
    atomic {
        i = 0;
        do
        :: i < R -> run Waker(i); run Memory(i); i++
        :: else -> break
        od;
        run Sleeper();
        run Memory(R)
    }
}
