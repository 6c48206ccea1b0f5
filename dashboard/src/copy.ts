// Copies text to the clipboard, also over plain HTTP, where the browser's clipboard API is unavailable.

export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return copySelected(text)
  }
}

function copySelected(text: string): boolean {
  const area = document.createElement('textarea')
  area.value = text
  area.readOnly = true
  area.className = 'offscreen'
  // A modal dialog makes everything outside of it inert.
  const home = document.querySelector('dialog[open]') ?? document.body
  home.append(area)
  area.select()
  try {
    return document.execCommand('copy')
  } finally {
    area.remove()
  }
}
