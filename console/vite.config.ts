import { defineConfig } from "vite";

// The control plane serves what is built here; a service on its usual ports answers what `npm run dev` asks for.
const control = process.env.TUPLEGATE_CONTROL_URL ?? "http://127.0.0.1:8082";

export default defineConfig({
  base: "/console/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/tuplegate/console/built",
    emptyOutDir: true,
    assetsDir: "assets",
    // The policy allows no inline styles, and data: addresses only for images.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    reportCompressedSize: true,
  },
  server: { proxy: { "/v1": control, "/metrics": control, "/console/config.json": control } },
});
