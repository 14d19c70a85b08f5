// Stacks as the file holds them: every text, frame and stack once, in numbers (snapshot_data.py).

export class Stacks {
  constructor(table) {
    this.table = table;
  }

  /** Frame numbers of a stack, innermost first; of stack -1 none. */
  frames(stack) {
    return this.table.stacks[stack] || [];
  }

  /** The frame of the user's own code that asked for the memory, or -1. */
  asking(stack) {
    return stack < 0 ? -1 : this.table.asking[stack];
  }

  isLibrary(frame) {
    return this.table.frames[frame][3] === 1;
  }

  name(frame) {
    return this.table.texts[this.table.frames[frame][0]];
  }

  path(frame) {
    return this.table.texts[this.table.frames[frame][1]];
  }

  /** "train.py:41". */
  place(frame) {
    const path = this.path(frame);
    return `${path.slice(path.lastIndexOf("/") + 1)}:${this.table.frames[frame][2]}`;
  }

  /** "step  train.py:41". */
  line(frame) {
    return `${this.name(frame)}  ${this.place(frame)}`;
  }

  /** What a stack says in one line: where the user's own code asked. */
  words(stack) {
    const frame = this.asking(stack);
    return frame < 0 ? "no stack recorded" : `${this.place(frame)} in ${this.name(frame)}`;
  }
}
