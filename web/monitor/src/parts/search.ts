import { useLayoutEffect, useRef, type RefObject } from "react";

/** A search field that "/" focuses. */
export function useSearchKey(): RefObject<HTMLInputElement | null> {
  const field = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => {
    const listen = (event: KeyboardEvent): void => {
      const inField = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
      if (event.key === "/" && !inField) {
        event.preventDefault();
        field.current?.focus();
      }
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
  return field;
}
