/* Search from the disk: browsers refuse workers there, so the theme's search worker runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      this.inside = inside
      window.addEventListener("message", event => {
        if (event.source !== inside) return
        const message = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(message)
        this.onmessage?.(message)
      })
      inside.document.write(`<html><body><script>
        postMessage = data => parent.dispatchEvent(new MessageEvent("message", { data, source: self }))
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise(done => {
          const script = Object.assign(document.createElement("script"), { src: url, onload: done, onerror: done })
          document.body.append(script)
        })), Promise.resolve())
      <\/script><script src="${url}"><\/script></body></html>`)
      inside.document.close()
      this.ready = new Promise(done => inside.addEventListener("load", done, { once: true }))
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
