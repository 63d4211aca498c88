/** Files from this server, and files that people keep. */

/**
 * @param {string} address
 * @returns {Promise<Uint8Array>}
 */
export async function load(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address} is not there: run make_digits.py first`);
  return new Uint8Array(await answer.arrayBuffer());
}

/**
 * @param {Uint8Array} bytes
 * @param {string} name
 */
export function save(bytes, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([/** @type {Uint8Array<ArrayBuffer>} */ (bytes)]));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
