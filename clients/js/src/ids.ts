/** UUIDv7, which sorts by time. `crypto.randomUUID` only creates version 4, and is unavailable on pages without TLS. */

const random = new Uint8Array(16);

export function uuid(now = Date.now()): string {
  crypto.getRandomValues(random);
  let hex = now.toString(16).padStart(12, '0');
  for (let index = 6; index < 16; index++) {
    let byte = random[index]!;
    if (index === 6) {
      byte = (byte & 0x0f) | 0x70;
    } else if (index === 8) {
      byte = (byte & 0x3f) | 0x80;
    }
    hex += byte.toString(16).padStart(2, '0');
  }
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
