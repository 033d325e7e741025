import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The page is embedded in the program: see crates/cli/build.rs.
export default defineConfig({
  plugins: [react()],
  build: {
    outDir: "../../crates/cli/page/dist",
    emptyOutDir: true,
    // No inlined images: the content security policy allows nothing inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: { port: 5173, strictPort: true, hmr: { clientPort: 5173 } },
});
