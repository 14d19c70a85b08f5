// Reads a pickle of plain values: what torch.cuda.memory._dump_snapshot writes. It knows no opcode that imports or calls,
// so a file can do nothing but be refused. Format: https://github.com/python/cpython/blob/main/Lib/pickletools.py

const MARK = Symbol("mark");

/** The value in `bytes` (a Uint8Array). Dicts become Maps, tuples arrays. Throws for what it does not know. */
export function unpickle(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const text = new TextDecoder();
  const stack = [];
  const memo = [];
  let at = 0;
  const take = (count) => {
    if (count < 0 || at + count > bytes.length) throw new Error("the file ends in the middle");
    at += count;
    return at - count;
  };
  const u1 = () => view.getUint8(take(1));
  const u4 = () => view.getUint32(take(4), true);
  const u8 = () => Number(view.getBigUint64(take(8), true));
  const string = (count) => {
    const from = take(count);
    return text.decode(bytes.subarray(from, from + count));
  };
  const whole = (count) => { // little-endian, two's complement
    const from = take(count);
    let value = 0;
    for (let place = count - 1; place >= 0; place -= 1) value = value * 256 + bytes[from + place];
    return count && bytes[from + count - 1] & 0x80 ? value - 256 ** count : value;
  };
  const toMark = () => {
    const place = stack.lastIndexOf(MARK);
    if (place < 0) throw new Error("the file is damaged");
    const items = stack.splice(place);
    items.shift();
    return items;
  };
  const top = () => stack[stack.length - 1];
  const setAll = (items) => {
    const map = top();
    for (let place = 0; place + 1 < items.length; place += 2) map.set(items[place], items[place + 1]);
  };
  const opcodes = {
    0x80: () => u1(), // PROTO
    0x95: () => take(8), // FRAME
    0x28: () => stack.push(MARK),
    0x7d: () => stack.push(new Map()), // EMPTY_DICT
    0x5d: () => stack.push([]), // EMPTY_LIST
    0x29: () => stack.push([]), // EMPTY_TUPLE
    0x58: () => stack.push(string(u4())), // BINUNICODE
    0x8c: () => stack.push(string(u1())), // SHORT_BINUNICODE
    0x8d: () => stack.push(string(u8())), // BINUNICODE8
    0x54: () => stack.push(string(u4())), // BINSTRING
    0x55: () => stack.push(string(u1())), // SHORT_BINSTRING
    0x42: () => stack.push(string(u4())), // BINBYTES
    0x43: () => stack.push(string(u1())), // SHORT_BINBYTES
    0x4a: () => stack.push(view.getInt32(take(4), true)), // BININT
    0x4b: () => stack.push(u1()), // BININT1
    0x4d: () => stack.push(view.getUint16(take(2), true)), // BININT2
    0x8a: () => stack.push(whole(u1())), // LONG1
    0x8b: () => stack.push(whole(u4())), // LONG4
    0x47: () => stack.push(view.getFloat64(take(8), false)), // BINFLOAT
    0x4e: () => stack.push(null),
    0x88: () => stack.push(true),
    0x89: () => stack.push(false),
    0x85: () => stack.push(stack.splice(-1)), // TUPLE1
    0x86: () => stack.push(stack.splice(-2)),
    0x87: () => stack.push(stack.splice(-3)),
    0x74: () => stack.push(toMark()), // TUPLE
    0x61: () => { const item = stack.pop(); top().push(item); }, // APPEND
    0x65: () => { const items = toMark(); for (const item of items) top().push(item); }, // APPENDS
    0x73: () => setAll(stack.splice(-2)), // SETITEM
    0x75: () => setAll(toMark()), // SETITEMS
    0x71: () => { memo[u1()] = top(); }, // BINPUT
    0x72: () => { memo[u4()] = top(); }, // LONG_BINPUT
    0x94: () => memo.push(top()), // MEMOIZE
    0x68: () => stack.push(memo[u1()]), // BINGET
    0x6a: () => stack.push(memo[u4()]), // LONG_BINGET
    0x30: () => stack.pop(), // POP
    0x31: () => toMark(), // POP_MARK
    0x32: () => stack.push(top()), // DUP
  };
  for (;;) {
    const code = u1();
    if (code === 0x2e) return stack.pop(); // STOP
    const step = opcodes[code];
    if (!step) throw new Error(`not a snapshot: opcode 0x${code.toString(16)} at byte ${at - 1}`);
    step();
  }
}
