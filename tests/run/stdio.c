/* stdio.c - reads lines from its standard input and writes to its standard output, as a server that
 * inetd starts does. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
  char *line = NULL;
  size_t room = 0;
  int number = 0;
  while (getline(&line, &room, stdin) > 0) printf("%d %s", ++number, line);
  free(line);
  printf("%d lines, %d\n", number, feof(stdin) != 0);
  fflush(stdout);
  /* What goes to stderr is the client's as well. */
  dup2(1, 2);
  errno = ENOENT;
  perror("stdio");
  fprintf(stderr, "error %d\n", 1);
  FILE *again = fdopen(dup(1), "w");
  fprintf(again, "by fdopen\n");
  fclose(again);
  /* What is left is written when the program ends. */
  printf("last\n");
  return 0;
}
