// Package crash lets tests kill the process at named points of the code, to see
// that every state in between is one that a restart can live with.
//
// Packages of the host call [Point] at the points worth dying at, such as right
// before and right after a commit. In a normal build Point is empty and is
// compiled away. Built with the tag faults, the process is killed with SIGKILL
// at the point that the environment variable DONA_CRASH_POINT names: "name", or
// "name:n" for the n-th time it is reached. "name:n:stop" stops it there instead, with
// SIGSTOP, until somebody continues it.
package crash
